"""Forged bundles whose hashes were made anew: each is refused, or named as not verified without the ledger."""

import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
import tomli_w

from dpscale.audit.evidence import bundle, crosscheck
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import Ledger
from dpscale.privacy.protection import Protection
from tests.audit.test_bundle import GAUSSIAN, PURE, UNIT, a_run, bundled, command

STORED = Path(__file__).parent / "stored" / "26445dd.tar.xz"
FILES = ("draws", "strategies", "events", "ledger", "selftest", "checklist", "run-files", "versions")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Bundles with their ledgers: of units, of a plan, of Laplace noise, of an adaptive run."""
    kinds = {"units": ("identity", GAUSSIAN, UNIT), "plan": ("query-smasher", GAUSSIAN), "laplace": ("identity", PURE),
             "adaptive": ("aim-grem", GAUSSIAN)}  # fmt: skip
    found = {}
    for name, kind in kinds.items():
        place = tmp_path_factory.mktemp(name)
        found[name] = bundled(a_run(place, *kind)), place / "ledger.sqlite"
    return found


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """Bundles and a ledger that an older version made."""
    place = tmp_path_factory.mktemp("older")
    with tarfile.open(STORED) as packed:
        packed.extractall(place, filter="data")
    return place


def forge(folder, place, change):
    """A copy with its files changed and all hashes made anew. `change`: takes the files by name, JSON and TOML read."""
    copy = shutil.copytree(folder, place)
    said = {name: json.loads((copy / f"{name}.json").read_text()) for name in FILES}
    said |= {name: tomllib.loads((copy / f"{name}.toml").read_text()) for name in ("job", "domain")}
    before = json.dumps(said)
    change(said)
    assert json.dumps(said) != before, "a forgery that forges nothing"
    for name, content in said.items():
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


def answer(said, question, text):
    next(row for row in said["checklist"] if row["question"] == question)["answer"] = text


def own(said):
    return crosscheck.own_entry(said)


# ---- forgeries that touch some files ---------------------------------------------------------------------------------


def fewer_rows(said):
    """Rows per unit lowered, and the costs that follow from it in all files."""
    said["draws"]["rows_per_unit"] = 1
    for event in said["events"]["release"]["events"]:
        event["cost"] = str(Fraction(event["cost"]) / 9)
        event["noise_multiplier"] *= 3
    _cost(said, Fraction(1, 9))


def _cost(said, factor):
    row, claim, whole = said["ledger"]["releases"][0], said["events"]["release"], said["events"]["dataset"]
    row["cost"]["gaussian"] = claim["cost"]["gaussian"] = str(Fraction(row["cost"]["gaussian"]) * factor)
    whole["events"][0] |= {"cost": row["cost"]["gaussian"],
                           "noise_multiplier": float(Fraction(row["cost"]["gaussian"])) ** -0.5}  # fmt: skip


def more_noise(said):
    for draw in said["draws"]["draws"]:
        draw["variance"] = str(25 * (int(draw["variance"]) - 8) + 8)
    for event in said["events"]["release"]["events"]:
        event["cost"] = str(Fraction(event["cost"]) / 25)
        event["noise_multiplier"] *= 5


def more_laplace(said):
    for draw in said["draws"]["draws"]:
        draw["laplace"] = str(5 * int(draw["laplace"]))
    for event in said["events"]["release"]["events"]:
        event["cost"] = str(Fraction(event["cost"]) / 5)
        event["noise_multiplier"] *= 5


def lower_epsilon(said):
    said["job"]["privacy"]["epsilon"] = 0.1


def larger_domain(said):
    said["domain"]["attributes"]["a"]["size"] = 400


def other_attribute(said):
    said["domain"]["attributes"]["z"] = said["domain"]["attributes"].pop("a")


def empty_selftest(said):
    said["selftest"]["checks"] = []


def passed_selftest(said):
    said["selftest"]["checks"][0]["passed"] = False


def protects_more(said):
    said["ledger"]["protects"] = "all rows of one person (add/remove)"


def other_answer(question, text):
    def change(said):
        answer(said, question, text)

    return change


def one_entry_columns(said):
    """Strategies that are known by one column, with the norms that the draws then have."""
    for factor in said["strategies"]["factors"].values():
        digest = crosscheck.chained(factor)
        factor.pop("matrix", None)
        factor["columns"] = {"sha256": digest, "squared": ["1"], "absolute": ["1"]}
    for draw in said["draws"]["draws"]:
        draw |= {"strategy": None, "squared_l2": "1", "l1": "1"}


def wrong_center(said):
    factor = next(iter(said["strategies"]["factors"].values()))
    factor["shape"] = [2]
    factor.pop("matrix", None)
    factor["kind"] = "center"
    name = next(iter(said["strategies"]["factors"]))
    for draw in said["draws"]["draws"]:
        draw["strategy"] = None if name in draw["factors"] else draw["strategy"]


def other_bound(said):
    said["job"]["data"]["max_rows_per_unit"] = 2


def other_unit(said):
    del said["job"]["data"]["privacy_unit"], said["job"]["data"]["max_rows_per_unit"]


def now_private(said):
    said["job"]["engine"]["seed"] = 3


def other_noise(said):
    del said["job"]["privacy"]["delta"]


def no_file(said):
    del said["run-files"]["measurements/" + said["draws"]["draws"][0]["file"]]


def other_plan(said):
    said["run-files"]["plan/plan.json"] = "0" * 64


def no_chain(said):
    del said["ledger"]["chain"]


def other_currency(said):
    said["ledger"]["currency"] = said["ledger"]["currency"].replace("gdp", "pure")


def other_link(said):
    said["ledger"]["chain"]["links"][0]["hidden"] = "0" * 64


REFUSED = [
    ("units", fewer_rows), ("plan", more_noise), ("laplace", more_laplace), ("plan", lower_epsilon),
    ("plan", larger_domain), ("laplace", larger_domain), ("plan", other_attribute), ("plan", empty_selftest),
    ("plan", passed_selftest), ("plan", protects_more), ("units", protects_more), ("plan", one_entry_columns),
    ("laplace", one_entry_columns), ("plan", wrong_center), ("laplace", wrong_center), ("units", other_bound),
    ("units", other_unit), ("plan", now_private), ("plan", other_noise), ("plan", no_file), ("plan", other_plan),
    ("plan", no_chain), ("units", other_currency), ("plan", other_link),
    ("units", other_answer("Whom does it protect?", "all rows of a household")),
    ("units", other_answer("How much may one unit contribute?", "at most 1 of its rows are counted")),
    ("plan", other_answer("ε", "0.1")), ("plan", other_answer("Is there a cap?", "ε = 1 at δ = 1e-09")),
    ("plan", other_answer("Timing, memory, progress", "protected")),
    ("plan", other_answer("Can a failure draw twice?", "no")), ("adaptive", lower_epsilon),
    ("adaptive", larger_domain), ("adaptive", one_entry_columns), ("adaptive", empty_selftest),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), REFUSED)
def test_a_forgery_of_some_files_is_refused_although_the_hashes_fit(made, tmp_path, kind, change):
    copy = forge(made[kind][0], tmp_path / "forged", change)
    with pytest.raises(JobError, match=r"evidence: .* is inconsistent: "):
        check_bundle(copy)
    script = subprocess.run([sys.executable, "-I", "-S", copy / "recompute.py"], capture_output=True)
    assert script.returncode == 1


def test_what_is_not_forged_is_sound_with_its_ledger_and_its_head(made):
    for folder, ledger in made.values():
        found = check_bundle(folder)
        assert any("who made the bundle" in one for one in found["unverified"])
        for place in (ledger, found["head"]):
            code, told, _ = command("evidence", "--check", folder, "--ledger", place)
            assert code == 0
            assert f"the chain with the head {found['head']}" in told
            assert "who made the bundle" not in told
            assert "CANNOT BE VERIFIED: draws, self-test" in told


# ---- forgeries that are consistent -----------------------------------------------------------------------------------


def consistent(change):
    """The same change with the rows of the ledger chained anew."""

    def whole(said):
        change(said)
        chain, rows, before = said["ledger"]["chain"], {"releases": list(said["ledger"]["releases"]), "caps": []}, ""
        if said["ledger"].get("cap"):
            rows["caps"] = [*said["ledger"]["former_caps"], said["ledger"]["cap"]]
        names = [None, *(row["release"] for row in rows["releases"])]
        chain["links"] = [link for link in chain["links"] if link["shown"].get("release") in names]
        plan = [f"{name}\0{one}\n" for name, one in sorted(said["run-files"].items()) if name.startswith("plan/")]
        facts = {"domain": crosscheck.hashlib.sha256(tomli_w.dumps(said["domain"]).encode()).hexdigest(),
                 "plan": crosscheck.hashlib.sha256("".join(plan).encode()).hexdigest()}  # fmt: skip
        chain["opened"]["facts"] = facts
        for link in chain["links"]:
            if link["entry"] in rows:
                row = rows[link["entry"]].pop(0)
                shown = {name: int(row[name]) if name == "public" else row.get(name) for name in link["shown"]}
                link["shown"] = shown | ({"cost": json.dumps(row["cost"], sort_keys=True)} if "cost" in row else {})
            if link["shown"].get("release") == said["draws"]["release"] and link["entry"] == "releases":
                link["facts"] = crosscheck.chained([chain["opened"]["key"], facts])
            before = crosscheck.chained([before, *(link[name] for name in ("entry", "shown", "hidden", "facts"))])
        chain["head"] = before

    return whole


def all_fewer_rows(said):
    fewer_rows(said)
    said["ledger"]["releases"][0]["bound"] = said["job"]["data"]["max_rows_per_unit"] = 1
    answer(said, "How much may one unit contribute?", "at most 1 of its rows are counted")


def all_lower_epsilon(said):
    """A smaller epsilon everywhere, and as much more noise."""
    more_noise(said)
    _cost(said, Fraction(1, 25))
    from dpscale.privacy.conversion import epsilon_of_mu

    epsilon = epsilon_of_mu(float(Fraction(own(said)["cost"]["gaussian"])) ** 0.5, 1e-9) * (1 + 1e-9)
    said["job"]["privacy"]["epsilon"] = said["ledger"]["releases"][0]["epsilon"] = epsilon
    for claim in (said["events"]["release"], said["events"]["dataset"], said["ledger"]["spent"]):
        claim["epsilon"] = epsilon
    answer(said, "ε", f"{epsilon:.9g}")
    answer(said, "What do they come to?", f"ε = {epsilon:.9g} at δ = 1e-09")


def all_other_domain(said):
    said["domain"]["attributes"]["a"]["outside"] = "clip"


def all_other_plan(said):
    other_plan(said)


def all_other_time(said):
    said["ledger"]["releases"][0]["reserved_at"] = "2001-01-01T00:00:00.000000+00:00"


CONSISTENT = [("units", all_fewer_rows), ("plan", all_lower_epsilon), ("laplace", all_other_domain),
              ("plan", all_other_plan), ("plan", all_other_time)]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), CONSISTENT)
def test_a_consistent_forgery_is_said_not_to_be_verified_and_refused_with_the_ledger(made, tmp_path, kind, change):
    folder, ledger = made[kind]
    head = check_bundle(folder)["head"]
    copy = forge(folder, tmp_path / "forged", consistent(change))
    found = check_bundle(copy)
    assert any("who made the bundle" in one for one in found["unverified"])
    assert "CANNOT BE VERIFIED: who made the bundle" in command("evidence", "--check", copy)[1]
    for place in (ledger, head):
        code, _, told = command("evidence", "--check", copy, "--ledger", place)
        assert code == 2
        assert "which the ledger does not contain" in told


def test_another_release_that_is_left_out_is_found_by_the_head(tmp_path):
    """The dataset has two releases; the bundle of the first, made after the second, lists one."""
    first = a_run(tmp_path, "identity", name="one")
    a_run(tmp_path, "identity", name="two")
    folder = bundled(first)

    def alone(said):
        said["ledger"]["releases"].pop()
        said["ledger"]["spent"] |= {"epsilon": said["events"]["release"]["epsilon"]}
        said["events"]["dataset"] |= {"epsilon": said["events"]["release"]["epsilon"]}
        said["events"]["dataset"]["events"][0]["count"] = 1
        answer(said, "How many releases of this dataset?", "1")
        answer(said, "What do they come to?", f"ε = {said['events']['release']['epsilon']:.9g} at δ = 1e-09")

    copy = forge(folder, tmp_path / "forged", consistent(alone))
    assert check_bundle(copy)["unverified"]
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        heads = ledger.heads()
    # the head of a chain that was cut is a link of the ledger's, with later entries: it is told how many
    assert check_bundle(copy, heads=heads)["later_entries"] == 2, "the release and its decision"
    newest = next(head for head, later in heads.items() if not later)
    with pytest.raises(JobError, match="which the ledger does not contain"):
        check_bundle(copy, heads={newest: 0})


def test_entries_after_the_bundle_are_counted(tmp_path):
    folder = bundled(a_run(tmp_path, "identity", name="one"))
    a_run(tmp_path, "identity", name="two")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 9.0, 1e-9, protects=Protection())
    code, told, _ = command("evidence", "--check", folder, "--ledger", tmp_path / "ledger.sqlite")
    assert code == 0
    assert "the ledger has 3 later entries" in told, "a release, its decision and a cap"


def test_a_bundle_under_a_cap_and_after_a_copy_of_the_ledger_is_sound(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 3.0, 1e-9, protects=Protection("unit"))
        ledger.set_cap("small", 4.0, 1e-9)
    run = a_run(tmp_path, "identity", data=UNIT)
    head = check_bundle(bundled(run))["head"]
    assert command("ledger", "copy", tmp_path / "ledger.sqlite", tmp_path / "new.sqlite")[0] == 0
    code, told, _ = command("evidence", "--check", run / "evidence", "--ledger", tmp_path / "new.sqlite")
    assert (code, f"the chain with the head {head}" in told) == (0, True)

    def cap_raised(said):
        said["ledger"]["cap"]["epsilon"] = 40.0
        answer(said, "Is there a cap?", "ε = 40 at δ = 1e-09")

    with pytest.raises(JobError, match="different caps"):
        check_bundle(forge(run / "evidence", tmp_path / "forged", cap_raised))


# ---- older bundles and ledgers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plan", "adaptive", "laplace", "units"])
def test_a_bundle_of_an_older_version_still_checks(older, kind):
    found = check_bundle(older / kind)
    assert found["own_scripts"], "they are those that the older version shipped"
    assert found["head"] is None
    assert found["unverified"]
    with pytest.raises(JobError, match="has no hash chain"):
        check_bundle(older / kind, heads={"0" * 64: 0})


@pytest.mark.parametrize(
    "change", [fewer_rows, lower_epsilon, larger_domain, empty_selftest, protects_more, more_noise]
)
def test_a_forgery_of_an_older_bundle_is_refused_too(older, tmp_path, change):
    with pytest.raises(JobError, match="is inconsistent"):
        check_bundle(forge(older / "units", tmp_path / "forged", change))


def test_scripts_of_an_older_version_that_were_edited_are_told(older, tmp_path):
    copy = shutil.copytree(older / "plan", tmp_path / "edited")
    (copy / "recompute.py").write_text("print('all as claimed')")
    copy = forge(copy, tmp_path / "forged", lambda said: said["versions"].update(made="now"))
    assert not check_bundle(copy)["own_scripts"]


def test_a_ledger_of_an_older_version_is_chained_when_it_is_opened(older, tmp_path):
    path = Path(shutil.copy(older / "ledger-4.sqlite", tmp_path))
    with Ledger.open(path) as ledger:
        ledger.verify()
        assert [link.entry for link, _ in ledger.chain("small")] == ["releases"] * 2 + ["rounds"] * 2
        before = ledger.summary()["datasets"]["small"]
        head = before["head"]
        ledger.move(tmp_path / "new.sqlite")
    with Ledger.open(tmp_path / "new.sqlite") as ledger:
        assert ledger.heads()[head] == 0
        assert ledger.summary()["datasets"]["small"] == before
    with pytest.raises(BudgetError, match="closed permanently"), Ledger.open(path) as ledger:
        ledger.set_cap("small", 1.0, 1e-9)
