"""Forged bundles with recomputed hashes are refused, or reported as unverifiable without the ledger."""

from fractions import Fraction

import pytest

from dpscale.audit.evidence import recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.ledger import Ledger
from dpscale.privacy.protection import Protection
from tests.audit.forging import consistently, forge, records_of, restate, run_script, scale_noise
from tests.audit.test_bundle import GAUSSIAN, PURE, UNIT, run_command, run_job, write_run_bundle
from tests.messages import refused


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


def set_answer(files, question, text):
    next(row for row in files["checklist"] if row["question"] == question)["answer"] = text


def own_ledger_entry(files):
    return recompute.own_entry(files)


# ---- forgeries that touch some files ---------------------------------------------------------------------------------


def fewer_rows(files):
    """Lower the rows of a unit, and the dependent costs in all files."""
    files["parts"]["data"]["bounds"]["rows"]["changes"] = [[[1, 1]]]
    for record in records_of(files):
        squared, absolute = int(record["squared_l2"]) // 9, int(record["l1"]) // 3
        record |= {"squared_l2": str(squared), "l1": str(absolute), "cost": str(Fraction(record["cost"]) / 9)}
    _scale_cost(files, Fraction(1, 9))


def _scale_cost(files, factor):
    row, claim = files["ledger"]["releases"][0], files["claims"]["release"]
    row["cost"]["gaussian"] = claim["cost"]["gaussian"] = str(Fraction(row["cost"]["gaussian"]) * factor)
    files["parts"]["data"]["costs"][""]["gaussian"] = row["cost"]["gaussian"]


def more_noise(files):
    """State 25 times the variance, with the costs and the events that follow."""
    for record in records_of(files):
        scale_noise(record, 25)
    restate(files)


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
        digest = recompute.chained(factor)
        factor.pop("matrix", None)
        factor["columns"] = {"sha256": digest, "squared": ["1"], "absolute": ["1"]}
    for record in records_of(files):
        record["strategy"] = None
    restate(files)


def wrong_center(files):
    """Describe a strategy by another kind, with the costs that the draws then have."""
    name, factor = next(iter(files["strategies"]["factors"].items()))
    factor["shape"] = [2]
    factor.pop("matrix", None)
    factor["kind"] = "center"
    for record in records_of(files):
        record["strategy"] = None if name in record["factors"] else record["strategy"]
    restate(files)


def no_strategies(files):
    """Measure exact counts without a strategy."""
    for record in records_of(files):
        record |= {"factors": [], "strategy": None}
    restate(files)


def other_bound_of_records(files):
    """Let draws state a bound of their own, as those do that are planned from released values."""
    for record in records_of(files):
        record["bound"] = {"changes": [[[1, 1]]]}
        scale_noise(record, Fraction(1, 9))
    restate(files)


def smaller_bound_at_the_same_cost(files):
    """State a smaller effect of a unit, and less noise, at the cost that was charged."""
    files["parts"]["data"]["bounds"]["rows"]["changes"] = [[[1, 1]]]
    for record in records_of(files):
        record["variance"] = str((int(record["variance"]) - 8) // 9 + 9)
    restate(files)


def other_bound(files):
    files["job"]["data"]["max_rows_per_unit"] = 2


def other_unit(files):
    del files["job"]["data"]["privacy_unit"], files["job"]["data"]["max_rows_per_unit"]


def seeded_job(files):
    files["job"]["engine"] = {"seed": 3}


def other_noise(files):
    del files["job"]["privacy"]["delta"]


def no_file(files):
    del files["run-files"][records_of(files)[0]["file"]]


def other_plan(files):
    files["run-files"]["plan/plan.json"] = "0" * 64


def no_chain(files):
    del files["ledger"]["chain"]


def other_currency(files):
    files["ledger"]["currency"] = files["ledger"]["currency"].replace("gdp", "pure")


def other_link(files):
    files["ledger"]["chain"]["entries"][0]["hidden"] = "0" * 64


def without_sealed_parts(files):
    """Claim that the charge sealed no facts of the parts."""
    del files["ledger"]["chain"]["opened"]["facts"]["parts"]


REFUSED = [
    ("units", fewer_rows), ("plan", more_noise), ("laplace", more_noise), ("plan", lower_epsilon),
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
    ("plan", no_strategies), ("units", other_bound_of_records), ("units", smaller_bound_at_the_same_cost),
    ("plan", without_sealed_parts),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), REFUSED)
def test_partial_forgery_is_refused(bundles, tmp_path, kind, change):
    copy = forge(bundles[kind][0], tmp_path / "forged", change)
    with refused(JobError):
        check_bundle(copy)
    assert run_script(copy).returncode == 1


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


def all_fewer_rows(files):
    fewer_rows(files)
    files["ledger"]["releases"][0]["bound"] = files["job"]["data"]["max_rows_per_unit"] = 1
    files["parts"]["data"]["contribution"] = "at most 1 of its rows are counted"
    set_answer(files, "How much may one unit contribute?", "at most 1 of its rows are counted")


def all_lower_epsilon(files):
    """Lower epsilon in all files, with correspondingly larger noise."""
    more_noise(files)
    _scale_cost(files, Fraction(1, 25))
    from dpscale.privacy.conversion import epsilon_of_mu

    epsilon = epsilon_of_mu(float(Fraction(own_ledger_entry(files)["cost"]["gaussian"])) ** 0.5, 1e-9) * (1 + 1e-9)
    files["job"]["privacy"]["epsilon"] = files["ledger"]["releases"][0]["epsilon"] = epsilon
    for claim in (files["claims"]["release"], files["claims"]["dataset"], files["ledger"]["spent"]):
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
    copy = forge(folder, tmp_path / "forged", consistently(change))
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
        files["ledger"]["spent"] |= {"epsilon": files["claims"]["release"]["epsilon"]}
        files["claims"]["dataset"] |= {"epsilon": files["claims"]["release"]["epsilon"]}
        set_answer(files, "How many releases of this dataset?", "1")
        set_answer(files, "What do they come to?", f"ε = {files['claims']['release']['epsilon']:.9g} at δ = 1e-09")

    copy = forge(folder, tmp_path / "forged", consistently(omit_second_release))
    assert check_bundle(copy)["unverified"]
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        heads = ledger.heads()
    # the head of a chain that was cut is a link of the ledger's, with later entries: it is told how many
    assert check_bundle(copy, heads=heads)["later_entries"] == 2, "the release and its decision"
    newest = next(head for head, later in heads.items() if not later)
    with refused(JobError):
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

    with refused(JobError):
        check_bundle(forge(run / "evidence", tmp_path / "forged", raise_cap))
