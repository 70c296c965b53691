"""Conditions that every cell satisfies, or none, and repeated ones: plans, answers and tables against the records."""

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.workload import Workload
from dpscale.workload.predicates import read_predicate
from tests.messages import refused
from tests.selection import mostly_slow

DOMAIN = dp.Domain.from_dict({"attributes": {
    "age": {"kind": "integer", "low": 0, "high": 5, "nulls": "category"},
    "sex": {"kind": "categories", "values": ["F", "M"]},
    "code": {"kind": "categories", "values": ["01", "2"], "outside": "category"},
}})  # fmt: skip
ROWS = 300
EVERY = {"age": "age < 9 or age is null", "sex": "sex in ('F', 'M')", "code": "code in ('01', '2', '(outside)')"}
SOME = {
    "age": ["age >= 3", "age is null", "age in (0, 4)", "age = 2", "not age between 1 and 4"],
    "sex": ["sex = 'F'", "sex != 'F'"],
    "code": ["code = 01", "code = '(outside)'", "code != 2"],
}


def records(seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "age": pd.array(rng.choice([0, 1, 2, 3, 4, 5, None], ROWS), dtype="Int64"),
        "sex": rng.choice(["F", "M"], ROWS),
        "code": rng.choice(["01", "2", "other"], ROWS),
    })  # fmt: skip


def cells_of(frame):
    """Return the cell of every record by attribute, which the test computes itself."""
    code = frame["code"].map({"01": 0, "2": 1}).fillna(2)
    return {"age": frame["age"].fillna(6), "sex": frame["sex"].map({"F": 0, "M": 1}), "code": code}


def count(frame, text):
    """Return how many records satisfy a predicate, whose cells `tests/workload/test_predicates.py` tests."""
    found, cells = read_predicate(text, DOMAIN), cells_of(frame)
    if not found.attributes:
        return len(frame)
    return int(found.mask[tuple(cells[name].to_numpy(np.int64) for name in found.attributes)].sum())


def release(folder, workload, name, seed=0, **sections):
    folder.mkdir(exist_ok=True)
    records(seed).to_parquet(folder / "rows.parquet")
    (folder / "domain.toml").write_text(
        '[attributes.age]\nkind = "integer"\nlow = 0\nhigh = 5\nnulls = "category"\n'
        '[attributes.sex]\nkind = "categories"\nvalues = ["F", "M"]\n'
        '[attributes.code]\nkind = "categories"\nvalues = ["01", "2"]\noutside = "category"\n'
    )
    job = {
        "data": {"path": str(folder / "rows.parquet"), "domain": str(folder / "domain.toml")},
        "privacy": {"epsilon": 1e7, "delta": 1e-6, "dataset": "rows", "allow_weak_privacy": True,
                    "ledger": str(folder / "ledger.sqlite")},
        "workload": workload, "mechanism": {"name": name}, "engine": {"scheduler": "threads"},
        **sections,
    }  # fmt: skip
    return dp.run(job, folder / "run", progress=None)


def check_answers(found, rows, near):
    """Compare the tables of all sets of a release, and its answer files, with the records."""
    texts = []
    tables = dict.fromkeys((names, part.name) for part in found.plan.workload.parts for names in part.sets)
    for names, family in tables:
        table = found.table(names, family=family)
        labels = [column for column in table.columns if table[column].dtype == "category"]
        for _, row in table.iterrows():
            text = " and ".join(f"({row[label]})" for label in labels) or "total"
            assert abs(row["estimate"] - count(rows, text)) <= near, (family, names, text, row["estimate"])
            texts.append(text)
    for file in (found.path / "answers").rglob("*.parquet"):
        assert len(pd.read_parquet(file)), file
    return texts


CONSTANT = [
    [EVERY["age"], "total"],
    [EVERY["age"], "sex = 'F'"],
    [f"({EVERY['age']}) and sex = 'F'", "sex = 'M'"],
    [f"({EVERY['age']}) and sex in ('F', 'M')", "sex = 'M'"],
    [f"{EVERY['age']} or sex = 'F'", "sex = 'M'"],
    [f"({EVERY['age']}) and sex in ('F', 'M')"],
    ["total"],
]
PRODUCTS = [{"age": ["total"], "sex": "identity"}, {"age": [EVERY["age"]], "sex": "identity"}, {"age": "total"},
            {"age": "total", "sex": ["sex = 'F'"]}, {"age": ["total"], "sex": [EVERY["sex"]]}]  # fmt: skip
MECHANISMS = ["weighted-residuals", "residual-planner", "identity", "aim-grem"]


@pytest.mark.parametrize("name", mostly_slow(MECHANISMS, {"weighted-residuals"}))
def test_conditions_that_every_record_satisfies_are_answered(tmp_path, name):
    """They ended in an error after the charge where few sets were measured."""
    adaptive = name == "aim-grem"  # which is refused, before the charge, without an attribute set
    for number, conditions in enumerate(CONSTANT[: -2 if adaptive else None]):
        found = release(tmp_path / f"c{number}", [{"family": "predicates", "conditions": conditions}], name)
        assert len(check_answers(found, records(), 3)) == len(conditions)
    for number, predicates in enumerate(PRODUCTS[:2] if adaptive else PRODUCTS):
        found = release(tmp_path / f"p{number}", [{"family": "product", "predicates": predicates}], name)
        assert check_answers(found, records(), 3)


def random_conditions(rng):
    """Return conditions of which some hold everywhere, on all records or on some attributes."""
    found = []
    for _ in range(rng.integers(1, 5)):
        names = [name for name in DOMAIN.names if rng.random() < 0.6]
        parts = [EVERY[name] if rng.random() < 0.3 else str(rng.choice(SOME[name])) for name in names]
        word = " or " if rng.random() < 0.25 else " and "
        found.append(word.join(f"({part})" for part in parts) or "total")
    return found + found[:1] * int(rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", mostly_slow(["weighted-residuals", "aim-grem"], {"weighted-residuals"}))
def test_random_conditions_are_planned_and_answered(tmp_path, seed, name):
    rng = np.random.default_rng(seed)
    conditions = random_conditions(rng)
    workload = Workload(DOMAIN).add_conditions(conditions)
    assert workload.query_count == len(conditions)
    found = release(tmp_path, [{"family": "predicates", "conditions": conditions}], name, seed)
    assert len(check_answers(found, records(seed), 3)) == len(conditions)


@pytest.mark.parametrize("frame", ["pandas", "arrow"])
def test_repeated_predicates_are_listed_as_often(tmp_path, frame):
    """A repetition counts, as in any workload, and its table has a row for each."""
    workload = [
        {"family": "predicates", "conditions": ["age = 1", "age = 1", "age = 2", "age = 1"]},
        {"family": "product", "label": "p", "predicates": {"sex": ["sex = 'F'", "sex = 'F'"]}},
        {"family": "predicates", "label": "j", "conditions": ["age = 1 or sex = 'F'"] * 2},
        {"family": "predicates", "conditions": ["age = 1"]},
    ]
    found = release(tmp_path, workload, "weighted-residuals")
    rows = records()
    for names, family, texts in (
        (("age",), "conditions", ["age = 1", "age = 1", "age = 2", "age = 1", "age = 1"]),
        (("sex",), "p", ["sex = 'F'"] * 2),
        (("age", "sex"), "j-joint", ["age = 1 or sex = 'F'"] * 2),
    ):
        table = found.table(names, family=family, frame=frame)
        table = table.to_pandas() if frame == "arrow" else table
        assert table.iloc[:, 0].tolist() == texts
        np.testing.assert_allclose(table["estimate"], [count(rows, text) for text in texts], atol=3)
    for file in (found.path / "answers").rglob("*.parquet"):
        assert len(pd.read_parquet(file)), file


def test_group_that_no_cell_satisfies_is_refused(tmp_path):
    found = release(tmp_path, [{"family": "marginal", "degree": 2}], "weighted-residuals")
    total = found.difference("age >= 0 or age is null", "age is null").estimate
    assert total == pytest.approx(ROWS - count(records(), "age is null"), abs=3)
    for ask in (
        lambda: found.difference("age > 5", None),
        lambda: found.difference({"sex": "F"}, {"sex": "M"}, share="age = 1 and age = 2"),
        lambda: found.odds_ratio("sex is null", "age = 1", reference="age = 2"),
    ):
        with refused(dp.JobError):
            ask()
    with refused(dp.JobError):
        found.difference({"sex": []}, None)


def test_condition_on_values_that_no_search_finds_counts_nothing(tmp_path):
    """The cells of a searched attribute are known after the charge only, when a condition can no more be refused."""
    pd.DataFrame({"sex": ["F", "M"] * 2000, "age": [1, 2, 3, 4] * 1000}).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "domain.toml").write_text(
        '[attributes.sex]\nkind = "discover"\nvalues = ["F", "M"]\nother = false\n'
        '[attributes.age]\nkind = "coded"\nsize = 5\n'
    )
    others = ["sex not in ('F', 'M')", "sex != 'F' and sex != 'M' and age = 1", "sex = 'F'"]
    for number, part in enumerate((
        {"family": "predicates", "conditions": others},
        {"family": "product", "predicates": {"sex": [others[0], others[2]], "age": "identity"}},
    )):  # fmt: skip
        job = {
            "data": {"path": str(tmp_path / "rows.parquet"), "domain": str(tmp_path / "domain.toml")},
            "privacy": {"epsilon": 100.0, "delta": 1e-6, "dataset": "rows", "allow_weak_privacy": True,
                        "ledger": str(tmp_path / "ledger.sqlite")},
            "workload": [part], "engine": {"scheduler": "synchronous"},
        }  # fmt: skip
        found = dp.run(job, tmp_path / f"run{number}", progress=None)
        asked = dict.fromkeys((names, one.name) for one in found.plan.workload.parts for names in one.sets)
        tables = [found.table(names, family=family) for names, family in asked]
        estimates = pd.concat([one.assign(asked=one["sex"].astype(str)) for one in tables]).groupby("asked")["estimate"]
        for text, estimate in estimates.sum().items():
            assert estimate == pytest.approx(2000 if text == others[2] else 0, abs=50), text


IMPOSSIBLE = ["age between 3 and 1", "age > 5", "age = 1 and age = 2", "not total", "sex is null",
              "age = 1 and sex = 'F' and age = 2", "(age = 1 or sex = 'F') and not (age = 1 or sex = 'F')"]  # fmt: skip


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_condition_that_no_cell_satisfies_is_refused(text):
    for conditions in ([text], ["age = 1", text]):
        with refused(dp.JobError) as caught:
            Workload(DOMAIN).add_conditions(conditions)
        assert text in str(caught.value)
    if read_predicate(text, DOMAIN).attributes in (("age",), ()):
        with refused(dp.JobError):
            Workload(DOMAIN).add_product({"age": ["age = 1", text], "sex": "identity"})


FEW = ["age >= 3 and sex = 'F' and code = '01'", "age < 2 and sex = 'M'", "code = '2' and age in (2, 4)"]


def test_few_conditions_are_planned_at_their_optimum_and_published_without_a_total(tmp_path):
    found = release(tmp_path, [{"family": "predicates", "conditions": FEW}], "weighted-residuals")
    assert found.plan.error == pytest.approx(found.plan.floor, rel=1e-5)
    assert len(found.plan.blocks) == 1
    assert len(check_answers(found, records(), 0.5)) == 3
    with refused(dp.PlanError):
        found.total()
    done = CliRunner().invoke(main, ["publish", str(found.path), "--out", str(tmp_path / "published")])
    assert done.exit_code == 0, done.output
    assert "do not determine the number of records" in (tmp_path / "published/README.txt").read_text()
    values = pd.concat(map(pd.read_csv, sorted((tmp_path / "published/csv").glob("*.csv"))))
    assert sorted(values["count"]) == sorted(count(records(), text) for text in FEW)


@pytest.mark.parametrize("section", [{"synthesize": {"rows": 200}}, {"reconstruct": {"method": "graphical"}}])
def test_conditions_beside_rows_or_a_model_are_measured_by_residuals(tmp_path, section):
    """The strategy of the conditions alone has no marginals."""
    rng = np.random.default_rng(0)
    sizes = {"age": 90, "sex": 2, "town": 7}
    pd.DataFrame({name: rng.integers(0, size, 2000) for name, size in sizes.items()}).to_parquet(
        tmp_path / "rows.parquet"
    )
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in sizes.items()}}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    found = dp.run({
        "data": {"path": str(tmp_path / "rows.parquet"), "domain": str(tmp_path / "domain.toml")},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "rows", "ledger": str(tmp_path / "ledger.sqlite")},
        "workload": [{"family": "predicates",
                      "conditions": ["age >= 65 and sex = 1 and town = 0", "age < 18 and town < 3"]}],
        **section,
    }, tmp_path / "run", progress=None)  # fmt: skip
    assert len(found.plan.blocks) > 1
    assert found.total().estimate == pytest.approx(2000, abs=400)
    if "synthesize" in section:
        assert len(found.synthetic()) == 200
