"""Every family with every mechanism through all commands; a refusal comes before the charge, in one sentence."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.ledger import Ledger
from dpscale.mechanisms import MECHANISMS
from dpscale.workload import FAMILIES
from tests.audit.small import write_selftest
from tests.selection import mostly_slow

SIZES = {"a0": 5, "a1": 3, "a2": 4}
DEGREES = (1, 2, 3)
PAIRS_ONLY = ("affine", "abs")
ADAPTIVE = ("aim-grem", "aim-pgm", "mst")
PRODUCTS = ("marginal", "prefix", "range", "circular", "hybrid", "product")
OF_NUMBERS = ("sum", "mean", "variance", "moments")
ARRAYS = {  # of `predicates`: the attributes, and the queries
    "one row": (("a0",), [[0, 1, 1, 1, 0]]),
    "the total": (("a0",), [[1] * 5]),
    "values": (("a0",), [[0, 1, 2, 3, 4]]),
    "a row of a pair": (("a1", "a2"), [[[1, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]]]),
    "rows of all": (("a0", "a1", "a2"), [np.tri(5)[:, :3, None] * [0, 1, 1, 0], np.ones((5, 3, 4))]),
    "nothing": (("a0",), [[0] * 5, [1, 0, 0, 0, 0]]),
}
FOUR = {"a0": 6, "a1": 3, "a2": 5, "a3": 5}


def write_inputs(folder, sizes):
    """Write a table of correlated columns, its domain, query arrays and a self-test result."""
    random = np.random.default_rng(1)
    frame = pd.DataFrame({name: random.integers(0, size, 400) for name, size in sizes.items()})
    frame["a1"], frame["v"] = np.minimum(frame.a0 // 2, 2), random.normal(3, 2, 400)
    frame["w"] = random.integers(0, 5, 400)
    (folder / "data").mkdir()
    frame.to_parquet(folder / "data" / "part.parquet", index=False)
    attributes = {name: {"kind": "coded", "size": size} for name, size in sizes.items()}
    numbers = {"v": {"low": 0, "high": 8, "step": 0.5}, "w": {"low": 0, "high": 4}}
    domain = {"attributes": attributes, "numbers": numbers}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    for name, (_, queries) in ARRAYS.items():
        np.save(folder / f"{name}.npy", np.array(queries, dtype=float))
    write_selftest(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("every"), SIZES)


def make_workload_part(family, degree):
    """Return the only part of a workload; `family` may be the name of a query array."""
    if family in ARRAYS:
        return {"family": "predicates", "attributes": [list(ARRAYS[family][0])], "file": f"{family}.npy"}
    if family == "product":
        queries = {"a0": ["a0 in 1..3", "a0 != 2", "total"], "a1": "identity", "a2": "prefix"}
        return {"family": family, "predicates": dict(list(queries.items())[:degree])}
    if family in OF_NUMBERS:
        return {"family": family, "degree": degree, "of": ["v", "w"] if family == "moments" else "v"}
    return {"family": family, "degree": degree} | ({"numeric": ["a0", "a2"]} if family == "hybrid" else {})


def is_refused(family, degree, mechanism):
    """Return whether a mechanism refuses a workload: strategies along single axes accept products only."""
    attributes = len(ARRAYS[family][0]) if family in ARRAYS else degree
    if family in OF_NUMBERS and mechanism in ADAPTIVE:
        return True
    return mechanism == "baseline" and family not in (*PRODUCTS, *OF_NUMBERS) and attributes > 1


def run_command(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
    return result.exit_code, result.stderr


def charged_releases(ledger):
    if not ledger.exists():
        return []
    with Ledger.open(ledger) as opened:
        return [one for dataset in opened.summary()["datasets"].values() for one in dataset["releases"]]


def check_combination(folder, family, degree, mechanism, compared=False, pure=False):
    """Run one combination through all commands, or check that `run` refuses it without charge or leftovers."""
    name = f"{family}-{degree}-{mechanism}-{compared}-{pure}".replace(" ", "-")
    run, ledger = folder / "runs" / name, folder / f"{name}.sqlite"
    job = {
        "data": {"path": "data", "domain": "domain.toml"},
        "privacy": {"epsilon": 1.0, "dataset": "d", "ledger": ledger.name} | ({} if pure else {"delta": 1e-6}),
        "workload": [make_workload_part(family, degree)],
        "mechanism": {"name": mechanism},
        "engine": {"scheduler": "synchronous", "memory": "1GiB"},
    } | ({"synthesize": {"rows": 300}} if compared else {})
    (folder / f"{name}.toml").write_text(tomli_w.dumps(job))
    if run.exists():
        return
    code, message = run_command("run", folder / f"{name}.toml", "--run-dir", run, "--quiet")
    if is_refused(family, degree, mechanism) or (pure and code):
        assert (code, message[:9], message.count("\n")) == (2, "dpscale: ", 1), (name, message)
        assert (charged_releases(ledger), run.exists()) == ([], False), name
        return
    assert code == 0, (name, message)
    assert len(charged_releases(ledger)) == 1, name
    selftest = ["evidence", run, "--selftest", folder / "selftest.json"]
    published = run_command("publish", run)
    listed = family in (*ARRAYS, *OF_NUMBERS)  # no row asks for the total, or sums do not determine counts
    unknown = (
        listed and published[0] == 2 and any(why in published[1] for why in ("it needs the total", "not measured"))
    )
    assert published == (0, "") or (unknown and published[1].count("\n") == 1), (name, published)
    commands = [
        ["job", "status", run],
        ["run", run, "--only", "report"],
        selftest,
        ["evidence", "--check", run / "evidence"],
    ]
    if compared:
        commands.append(["compare", run, folder / "data", "--out", folder / "compared" / name])
    assert [(one[0], *run_command(*one)) for one in commands] == [(one[0], 0, "") for one in commands], name


def degree_of(family, mechanism):
    """Return a degree for a family and a mechanism; every pair of family, mechanism and degree occurs."""
    if family in PAIRS_ONLY:
        return 2
    return DEGREES[(list(FAMILIES).index(family) + list(MECHANISMS).index(mechanism)) % len(DEGREES)]


@pytest.mark.parametrize("mechanism", mostly_slow(MECHANISMS, {"auto", "aim-grem"}))
def test_families_pass_all_commands(folder, mechanism):
    """Each mechanism runs a third of the families, so each family meets four mechanisms; `test_all_combinations` has
    all.
    """
    first = list(MECHANISMS).index(mechanism) % 3
    for family in list(FAMILIES)[first::3]:
        check_combination(folder, family, degree_of(family, mechanism), mechanism)


@pytest.mark.parametrize("mechanism", mostly_slow(MECHANISMS, {"auto", "aim-pgm"}))
def test_query_arrays_pass_all_commands(folder, mechanism):
    number = list(MECHANISMS).index(mechanism)
    for family in ["the total", *list(ARRAYS)[number % 3 :: 3]]:
        check_combination(folder, family, None, mechanism)


@pytest.mark.parametrize("family", mostly_slow(PAIRS_ONLY, list(PAIRS_ONLY)[:1]))
def test_sums_and_differences_of_four_attributes(tmp_path, family):
    """These queries determine the cells of some pairs only."""
    check_combination(write_inputs(tmp_path, FOUR), family, 2, "weighted-residuals")


@pytest.mark.parametrize("mechanism", ["mst", "query-smasher"])
def test_synthetic_rows_are_compared_with_data(folder, mechanism):
    check_combination(folder, "marginal", 2, mechanism, compared=True)


@pytest.mark.slow
@pytest.mark.parametrize("pure", [False, True], ids=["approximate", "pure"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_all_combinations(folder, mechanism, pure):
    families = [(family, degree) for family, degree in product(FAMILIES, DEGREES) if family not in PAIRS_ONLY]
    for family, degree in [*families, *((one, 2) for one in PAIRS_ONLY), *((one, None) for one in ARRAYS)]:
        check_combination(folder, family, degree, mechanism, compared=mechanism in ADAPTIVE and not pure, pure=pure)
