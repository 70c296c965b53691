"""Forged bundles with recomputed hashes are refused, or reported as unverifiable without the ledger."""

import json
import shutil
import subprocess
import sys
import tomllib
from fractions import Fraction

import pytest
import tomli_w

from dpscale.audit.evidence import bundle, crosscheck
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.ledger import Ledger
from dpscale.privacy.protection import Protection
from tests.audit.test_bundle import GAUSSIAN, PURE, UNIT, run_command, run_job, write_run_bundle

FILES = ("draws", "strategies", "events", "ledger", "selftest", "checklist", "run-files", "versions")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Bundles with their ledgers: of units, of a fixed plan, of Laplace noise and of an adaptive run."""
    kinds = {"units": ("identity", GAUSSIAN, UNIT), "plan": ("query-smasher", GAUSSIAN), "laplace": ("identity", PURE),
             "adaptive": ("aim-grem", GAUSSIAN)}  # fmt: skip
    found = {}
    for name, kind in kinds.items():
        place = tmp_path_factory.mktemp(name)
        found[name] = write_run_bundle(run_job(place, *kind)), place / "ledger.sqlite"
    return found


def forge(folder, place, change):
    """Return a copy with edited files and recomputed hashes; `change` edits a dict of the parsed files by name."""
    copy = shutil.copytree(folder, place)
    files = {name: json.loads((copy / f"{name}.json").read_text()) for name in FILES}
    files |= {name: tomllib.loads((copy / f"{name}.toml").read_text()) for name in ("job", "domain")}
    before = json.dumps(files)
    change(files)
    assert json.dumps(files) != before, "a forgery that forges nothing"
    for name, content in files.items():
        if name in FILES:
            (copy / f"{name}.json").write_bytes(bundle.canonical(content))
        else:
            (copy / f"{name}.toml").write_text(tomli_w.dumps(content))
    for name in ("hashes.json", "signature.json"):
        (copy / name).unlink(missing_ok=True)
    contents = {path.name: path.read_bytes() for path in copy.iterdir()}
    for name, content in bundle._sealed(contents, None).items():
        (copy / name).write_bytes(content)
    return copy


def set_answer(files, question, text):
    next(row for row in files["checklist"] if row["question"] == question)["answer"] = text


def own_ledger_entry(files):
    return crosscheck.own_entry(files)


# ---- forgeries that touch some files ---------------------------------------------------------------------------------


def first_component(files):
    """The table of a bundle of any format."""
    return files["draws"].get("components", [files["draws"]])[0]


def fewer_rows(files):
    """Lower the rows per unit, and the dependent costs in all files."""
    first_component(files)["rows_per_unit"] = 1
    for event in files["events"]["release"]["events"]:
        event["cost"] = str(Fraction(event["cost"]) / 9)
        event["noise_multiplier"] *= 3
    _scale_cost(files, Fraction(1, 9))


def _scale_cost(files, factor):
    row, claim, whole = files["ledger"]["releases"][0], files["events"]["release"], files["events"]["dataset"]
    row["cost"]["gaussian"] = claim["cost"]["gaussian"] = str(Fraction(row["cost"]["gaussian"]) * factor)
    whole["events"][0] |= {"cost": row["cost"]["gaussian"],
                           "noise_multiplier": float(Fraction(row["cost"]["gaussian"])) ** -0.5}  # fmt: skip


def more_noise(files):
    for draw in first_component(files)["draws"]:
        draw["variance"] = str(25 * (int(draw["variance"]) - 8) + 8)
    for event in files["events"]["release"]["events"]:
        event["cost"] = str(Fraction(event["cost"]) / 25)
        event["noise_multiplier"] *= 5


def more_laplace(files):
    for draw in first_component(files)["draws"]:
        draw["laplace"] = str(5 * int(draw["laplace"]))
    for event in files["events"]["release"]["events"]:
        event["cost"] = str(Fraction(event["cost"]) / 5)
        event["noise_multiplier"] *= 5


def lower_epsilon(files):
    files["job"]["privacy"]["epsilon"] = 0.1


def larger_domain(files):
    files["domain"]["attributes"]["a"]["size"] = 400


def other_attribute(files):
    files["domain"]["attributes"]["z"] = files["domain"]["attributes"].pop("a")


def empty_selftest(files):
    files["selftest"]["checks"] = []


def failed_selftest(files):
    files["selftest"]["checks"][0]["passed"] = False


def stronger_protection(files):
    files["ledger"]["protects"] = "all rows of one person (add/remove)"


def other_answer(question, text):
    def change(files):
        set_answer(files, question, text)

    return change


def one_entry_columns(files):
    """Describe strategies by a single column, with the norms that the draws then have."""
    for factor in files["strategies"]["factors"].values():
        digest = crosscheck.chained(factor)
        factor.pop("matrix", None)
        factor["columns"] = {"sha256": digest, "squared": ["1"], "absolute": ["1"]}
    for draw in first_component(files)["draws"]:
        draw |= {"strategy": None, "squared_l2": "1", "l1": "1"}


def wrong_center(files):
    factor = next(iter(files["strategies"]["factors"].values()))
    factor["shape"] = [2]
    factor.pop("matrix", None)
    factor["kind"] = "center"
    name = next(iter(files["strategies"]["factors"]))
    for draw in first_component(files)["draws"]:
        draw["strategy"] = None if name in draw["factors"] else draw["strategy"]


def other_bound(files):
    files["job"]["data"]["max_rows_per_unit"] = 2


def other_unit(files):
    del files["job"]["data"]["privacy_unit"], files["job"]["data"]["max_rows_per_unit"]


def seeded_job(files):
    files["job"]["engine"]["seed"] = 3


def other_noise(files):
    del files["job"]["privacy"]["delta"]


def no_file(files):
    del files["run-files"]["measurements/" + first_component(files)["draws"][0]["file"]]


def other_plan(files):
    files["run-files"]["plan/plan.json"] = "0" * 64


def no_chain(files):
    del files["ledger"]["chain"]


def other_currency(files):
    files["ledger"]["currency"] = files["ledger"]["currency"].replace("gdp", "pure")


def other_link(files):
    files["ledger"]["chain"]["links"][0]["hidden"] = "0" * 64


REFUSED = [
    ("units", fewer_rows), ("plan", more_noise), ("laplace", more_laplace), ("plan", lower_epsilon),
    ("plan", larger_domain), ("laplace", larger_domain), ("plan", other_attribute), ("plan", empty_selftest),
    ("plan", failed_selftest), ("plan", stronger_protection), ("units", stronger_protection),
    ("plan", one_entry_columns), ("laplace", one_entry_columns), ("plan", wrong_center), ("laplace", wrong_center),
    ("units", other_bound), ("units", other_unit), ("plan", seeded_job), ("plan", other_noise), ("plan", no_file),
    ("plan", other_plan), ("plan", no_chain), ("units", other_currency), ("plan", other_link),
    ("units", other_answer("Whom does it protect?", "all rows of a household")),
    ("units", other_answer("How much may one unit contribute?", "at most 1 of its rows are counted")),
    ("plan", other_answer("ε", "0.1")), ("plan", other_answer("Is there a cap?", "ε = 1 at δ = 1e-09")),
    ("plan", other_answer("Timing, memory, progress", "protected")),
    ("plan", other_answer("Can a failure draw twice?", "no")), ("adaptive", lower_epsilon),
    ("adaptive", larger_domain), ("adaptive", one_entry_columns), ("adaptive", empty_selftest),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), REFUSED)
def test_partial_forgery_is_refused(bundles, tmp_path, kind, change):
    copy = forge(bundles[kind][0], tmp_path / "forged", change)
    with pytest.raises(JobError, match=r"evidence: .* is inconsistent: "):
        check_bundle(copy)
    script = subprocess.run([sys.executable, "-I", "-S", copy / "recompute.py"], capture_output=True)
    assert script.returncode == 1


def test_unforged_bundle_passes_with_ledger_or_head(bundles):
    for folder, ledger in bundles.values():
        found = check_bundle(folder)
        assert any("who made the bundle" in one for one in found["unverified"])
        for place in (ledger, found["head"]):
            code, output, _ = run_command("evidence", "--check", folder, "--ledger", place)
            assert code == 0
            assert f"the chain with the head {found['head']}" in output
            assert "who made the bundle" not in output
            assert "CANNOT BE VERIFIED: draws, self-test" in output


# ---- forgeries that are consistent -----------------------------------------------------------------------------------


def rechain(change):
    """Return the change followed by recomputed links of the ledger chain."""

    def change_and_rechain(files):
        change(files)
        chain, rows, before = files["ledger"]["chain"], {"releases": list(files["ledger"]["releases"]), "caps": []}, ""
        if files["ledger"].get("cap"):
            rows["caps"] = [*files["ledger"]["former_caps"], files["ledger"]["cap"]]
        names = [None, *(row["release"] for row in rows["releases"])]
        chain["links"] = [link for link in chain["links"] if link["shown"].get("release") in names]
        plan = [f"{name}\0{one}\n" for name, one in sorted(files["run-files"].items()) if name.startswith("plan/")]
        facts = {"domain": crosscheck.hashlib.sha256(tomli_w.dumps(files["domain"]).encode()).hexdigest(),
                 "plan": crosscheck.hashlib.sha256("".join(plan).encode()).hexdigest()}  # fmt: skip
        chain["opened"]["facts"] = facts
        for link in chain["links"]:
            if link["entry"] in rows:
                row = rows[link["entry"]].pop(0)
                shown = {name: int(row[name]) if name == "public" else row.get(name) for name in link["shown"]}
                link["shown"] = shown | ({"cost": json.dumps(row["cost"], sort_keys=True)} if "cost" in row else {})
            if link["shown"].get("release") == files["draws"]["release"] and link["entry"] == "releases":
                link["facts"] = crosscheck.chained([chain["opened"]["key"], facts])
            before = crosscheck.chained([before, *(link[name] for name in ("entry", "shown", "hidden", "facts"))])
        chain["head"] = before

    return change_and_rechain


def all_fewer_rows(files):
    fewer_rows(files)
    files["ledger"]["releases"][0]["bound"] = files["job"]["data"]["max_rows_per_unit"] = 1
    set_answer(files, "How much may one unit contribute?", "at most 1 of its rows are counted")


def all_lower_epsilon(files):
    """Lower epsilon in all files, with correspondingly larger noise."""
    more_noise(files)
    _scale_cost(files, Fraction(1, 25))
    from dpscale.privacy.conversion import epsilon_of_mu

    epsilon = epsilon_of_mu(float(Fraction(own_ledger_entry(files)["cost"]["gaussian"])) ** 0.5, 1e-9) * (1 + 1e-9)
    files["job"]["privacy"]["epsilon"] = files["ledger"]["releases"][0]["epsilon"] = epsilon
    for claim in (files["events"]["release"], files["events"]["dataset"], files["ledger"]["spent"]):
        claim["epsilon"] = epsilon
    set_answer(files, "ε", f"{epsilon:.9g}")
    set_answer(files, "What do they come to?", f"ε = {epsilon:.9g} at δ = 1e-09")


def all_other_domain(files):
    files["domain"]["attributes"]["a"]["outside"] = "clip"


def all_other_plan(files):
    other_plan(files)


def all_other_time(files):
    files["ledger"]["releases"][0]["reserved_at"] = "2001-01-01T00:00:00.000000+00:00"


CONSISTENT = [("units", all_fewer_rows), ("plan", all_lower_epsilon), ("laplace", all_other_domain),
              ("plan", all_other_plan), ("plan", all_other_time)]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), CONSISTENT)
def test_consistent_forgery_is_unverified_and_refused_with_ledger(bundles, tmp_path, kind, change):
    folder, ledger = bundles[kind]
    head = check_bundle(folder)["head"]
    copy = forge(folder, tmp_path / "forged", rechain(change))
    found = check_bundle(copy)
    assert any("who made the bundle" in one for one in found["unverified"])
    assert "CANNOT BE VERIFIED: who made the bundle" in run_command("evidence", "--check", copy)[1]
    for place in (ledger, head):
        code, _, output = run_command("evidence", "--check", copy, "--ledger", place)
        assert code == 2
        assert "which the ledger does not contain" in output


def test_omitted_release_is_detected_by_head(tmp_path):
    """The dataset has two releases; the bundle of the first, made after the second, lists one."""
    first = run_job(tmp_path, "identity", name="one")
    run_job(tmp_path, "identity", name="two", fresh=True)
    folder = write_run_bundle(first)

    def omit_second_release(files):
        files["ledger"]["releases"].pop()
        files["ledger"]["spent"] |= {"epsilon": files["events"]["release"]["epsilon"]}
        files["events"]["dataset"] |= {"epsilon": files["events"]["release"]["epsilon"]}
        files["events"]["dataset"]["events"][0]["count"] = 1
        set_answer(files, "How many releases of this dataset?", "1")
        set_answer(files, "What do they come to?", f"ε = {files['events']['release']['epsilon']:.9g} at δ = 1e-09")

    copy = forge(folder, tmp_path / "forged", rechain(omit_second_release))
    assert check_bundle(copy)["unverified"]
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        heads = ledger.heads()
    # the head of a chain that was cut is a link of the ledger's, with later entries: it is told how many
    assert check_bundle(copy, heads=heads)["later_entries"] == 2, "the release and its decision"
    newest = next(head for head, later in heads.items() if not later)
    with pytest.raises(JobError, match="which the ledger does not contain"):
        check_bundle(copy, heads={newest: 0})


def test_later_ledger_entries_are_counted(tmp_path):
    folder = write_run_bundle(run_job(tmp_path, "identity", name="one"))
    run_job(tmp_path, "identity", name="two", fresh=True)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 9.0, 1e-9, protects=Protection())
    code, output, _ = run_command("evidence", "--check", folder, "--ledger", tmp_path / "ledger.sqlite")
    assert code == 0
    assert "the ledger has 3 later entries" in output, "a release, its decision and a cap"


def test_bundle_under_cap_passes_after_ledger_copy(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 3.0, 1e-9, protects=Protection("unit"))
        ledger.set_cap("small", 4.0, 1e-9)
    run = run_job(tmp_path, "identity", data=UNIT)
    head = check_bundle(write_run_bundle(run))["head"]
    assert run_command("ledger", "copy", tmp_path / "ledger.sqlite", tmp_path / "new.sqlite")[0] == 0
    code, output, _ = run_command("evidence", "--check", run / "evidence", "--ledger", tmp_path / "new.sqlite")
    assert (code, f"the chain with the head {head}" in output) == (0, True)

    def raise_cap(files):
        files["ledger"]["cap"]["epsilon"] = 40.0
        set_answer(files, "Is there a cap?", "ε = 40 at δ = 1e-09")

    with pytest.raises(JobError, match="different caps"):
        check_bundle(forge(run / "evidence", tmp_path / "forged", raise_cap))
