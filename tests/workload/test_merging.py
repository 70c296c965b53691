"""Cells that no query distinguishes: plans on their classes lose nothing, and answers are those of the cells."""

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale import Domain, PlanError, Workload
from dpscale.mechanisms import MECHANISMS, mechanism
from dpscale.optimize.lower_bounds import exact_floor
from dpscale.plans.plan import read_plan, write_plan
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import merging
from dpscale.workload.merging import merge_cells
from tests.messages import refused
from tests.oracles import explicit_strategy, least_squares_variances

ZIPS = ["zip in 0..999", "zip in 500..1499", "zip in 2000..2999", "zip >= 4000", "total"]
FIXED = [name for name in MECHANISMS if "least_squares" in mechanism(name).forms(mechanism(name).Options())]
SIZES = {"a": 7, "b": 6, "c": 2}


@pytest.fixture
def always(monkeypatch):
    """Merge cells of small attributes too."""
    monkeypatch.setattr(merging, "LONG", 1)


def make_workload() -> Workload:
    """Return products and an array on few cells, of which some are alike."""
    workload = Workload(Domain(SIZES)).add_product({"a": ["a in 1..4", "a in 3..5"], "c": "identity"}, weight=2.0)
    workload.add_product({"b": ["b in (0, 3)", "b = 5"]})
    array = np.zeros((3, 7, 6))
    array[0, 1:3], array[1, :, 5], array[2, 3:, 3] = 1, -2, 1
    return workload.add_queries(("a", "b"), array, weights=[1.0, 3.0, 0.5])


def test_classes_are_those_of_brute_force():
    workload = make_workload()
    for name, size in SIZES.items():
        columns: list[tuple] = [() for _ in range(size)]
        for part in workload.parts:
            for names in part.sets:
                if name in names:
                    array = np.moveaxis(part.queries(names), names.index(name) + 1, 0)
                    columns = [(*own, *array[cell].reshape(-1)) for cell, own in enumerate(columns)]
        expected = [columns.index(own) for own in columns]
        labels = merging._labels(workload, name)
        found = range(size) if labels is None else [labels.tolist().index(label) for label in labels.tolist()]
        assert list(found) == expected


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", FIXED)
def test_variances_on_classes_equal_least_squares_on_cells(name):
    workload = make_workload()
    try:
        plan = dp.plan(workload, mechanism=name)
    except PlanError:
        pytest.skip(f"{name} does not take arrays over two attributes")
    assert plan.blocks.merged.sizes == {"a": 5, "b": 4}
    strategy = strategy_on_cells(plan)
    assert (strategy**2).sum(axis=0).max() <= 1 + 1e-9
    queries, weights = queries_on_cells(workload)
    expected = least_squares_variances(strategy, queries, np.linalg.matrix_rank(strategy))
    found = np.concatenate([plan.accuracy.part_variances(part, names).reshape(-1)
                            for part in workload.parts for names in part.sets])  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert plan.error == pytest.approx(float(weights @ expected), rel=1e-6)


def queries_on_cells(workload):
    """Return all queries over all cells, and their weights."""
    rows, weights = [], []
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            shape = [size if name in names else 1 for name, size in SIZES.items()]
            queries = part.queries(names)
            whole = np.broadcast_to(queries.reshape(-1, *shape), (len(queries), *SIZES.values()))
            rows.append(whole.reshape(len(queries), -1))
            weights.append(weight * part.query_weights(names))
    return np.concatenate(rows), np.concatenate(weights)


def strategy_on_cells(plan):
    """Return the measurements of a plan as a matrix over all cells."""
    merged = plan.blocks.merged
    on_classes = dp.plan(merged.workload(plan.workload), mechanism=plan.mechanism)
    rows = explicit_strategy(on_classes, on_classes.blocks.unit_variances)
    names = plan.domain.names
    spread = merged.spread(names, rows.reshape(len(rows), *merged.domain.shape(names)))
    return spread.reshape(len(rows), -1)


@pytest.mark.usefixtures("always")
def test_plan_on_classes_is_the_optimum_over_all_mechanisms():
    workload = make_workload()
    plan, optimum = dp.plan(workload), exact_floor(workload)
    assert optimum * (1 - 1e-6) <= plan.error <= optimum * 1.01
    assert optimum * 0.99 <= plan.floor <= optimum * (1 + 1e-6)  # a dual value, which ends at its gap


@pytest.mark.usefixtures("always")
def test_exact_counts_are_answered_exactly_and_finer_queries_are_refused(tmp_path):
    workload = make_workload()
    write_plan(tmp_path, dp.plan(workload))
    plan = read_plan(tmp_path, workload)
    counts = np.random.default_rng(0).integers(0, 50, tuple(SIZES.values()))

    def read(index: int) -> np.ndarray:
        block = plan.blocks[index]
        outside = tuple(axis for axis, name in enumerate(SIZES) if name not in block.attributes)
        values = block.coarsened(counts.sum(axis=outside))
        if block.joint:
            return block.factors[0].explicit() @ values.reshape(-1)
        for axis, factor in enumerate(block.factors):
            values = np.moveaxis(np.tensordot(factor.explicit(), values, axes=(1, axis)), 0, axis)
        return values

    estimates = LeastSquaresEstimates(plan, plan.blocks.unit_variances.tolist(), read)
    for part in workload.parts:
        for names in part.sets:
            marginal = counts.sum(axis=tuple(axis for axis, name in enumerate(SIZES) if name not in names))
            exact = part.answers(names, marginal.astype(float))
            np.testing.assert_allclose(estimates.part_answers(part, names)[0], exact, atol=1e-4)
            query = part.queries(names)[0]
            assert estimates.answer(names, query)[0] == pytest.approx(float((query * marginal).sum()), abs=1e-4)
    with refused(PlanError):
        plan.variance("a", np.eye(7)[1])
    with refused(PlanError):
        estimates.marginal(("a",))
    assert not any({"a", "b"} & set(names) for names in plan.accuracy.complete_sets())


@pytest.mark.parametrize("name", FIXED)
def test_predicates_on_5_000_codes_are_planned_by_every_fixed_mechanism(name):
    workload = Workload(Domain(zip=5000, sex=2)).add_product({"zip": ZIPS, "sex": "identity"})
    plan = dp.plan(workload, mechanism=name)
    assert plan.blocks.merged.sizes == {"zip": 6}
    assert any("zip 5,000 to 6" in note for note in plan.notes)
    if workload.domain.cells(names := plan.blocks[0].attributes) <= 4096:
        assert plan.strategy(names).shape[1] == workload.domain.cells(names)


def test_groups_over_70_000_codes_and_areas_are_planned():
    rng = np.random.default_rng(3)
    group = np.sort(rng.integers(0, 300, 70_000))
    groups = (group[None] == np.arange(300)[:, None]).astype(float)
    areas = (rng.integers(0, 201, 3_000)[None] == np.arange(200)[:, None]).astype(float)
    domain = Domain(icd=70_000, postcode=3_000, sex=2)
    workload = Workload(domain).add_product({"icd": groups, "sex": "identity"}).add_product({"postcode": areas})
    plan = dp.plan(workload)
    assert plan.blocks.merged.sizes == {"icd": 300, "postcode": 201}
    assert plan.rmse() < 2
    assert plan.optimality_gap < 1e-3


def test_bound_over_all_mechanisms_is_told_for_listed_groups_beside_others():
    group = np.arange(900) // 3
    workload = Workload(Domain(code=900, sex=2)).add_product({"code": np.eye(300)[group].T, "sex": "identity"})
    plan = dp.plan(workload)
    assert plan.blocks.merged.sizes == {"code": 300}
    assert plan.bound_all == pytest.approx(plan.rmse(), rel=1e-3)


def test_merged_parts_are_made_once():
    workload = Workload(Domain(zip=5000, sex=2)).add_product({"zip": ZIPS})
    merged = merge_cells(workload)
    part = merged.part(workload.parts[0])
    assert merged.part(workload.parts[0]) is part


def test_condition_over_two_attributes_of_200_cells_has_two_classes_each():
    workload = Workload(Domain(x=200, y=200)).add_conditions(["x < 20 or y >= 150", "x >= 20", "total"])
    plan = dp.plan(workload)
    assert plan.blocks.merged.sizes == {"x": 2, "y": 2}
    assert plan.rmse() <= plan.bound_all * 1.001


def test_families_that_ask_for_cells_merge_nothing():
    domain = Domain(zip=1000, age=90)
    listed = {"zip": ["zip < 100", "zip >= 900"]}
    assert merge_cells(Workload(domain).add_product(listed)) is not None
    assert merge_cells(Workload(domain).add_product(listed).add("prefix", attributes=[["zip"]])) is None
    assert merge_cells(Workload(domain).add("marginal", degree=2)) is None
    few = {"zip": ["zip < 10", "zip >= 90"]}
    assert merge_cells(Workload(Domain(zip=100, age=90)).add_product(few)) is None  # few cells are planned as such


def write_job(folder, rows: int, epsilon: float, **sections):
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"zip": rng.integers(0, 5000, rows), "sex": rng.integers(0, 2, rows)})
    frame.to_parquet(folder / "table.parquet")
    (folder / "domain.toml").write_text('[attributes]\nzip = {kind = "coded", size = 5000}\n'
                                        'sex = {kind = "coded", size = 2}\n')  # fmt: skip
    content = {
        "data": {"path": "table.parquet", "domain": "domain.toml"},
        "privacy": {"epsilon": epsilon, "delta": 1e-6, "ledger": "ledger.sqlite", "dataset": "t",
                    "allow_weak_privacy": True},
        "workload": [{"family": "product", "predicates": {"zip": ZIPS, "sex": "identity"}}],
        "engine": {"scheduler": "synchronous"},
        **sections,
    }  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(content))
    return frame


def test_release_answers_and_labels_the_queries_of_the_cells(tmp_path):
    frame = write_job(tmp_path, 3000, 1e6)
    release = dp.run(tmp_path / "job.toml", tmp_path / "run")
    table = release.table(("zip", "sex"), family="product")
    assert len(table) == 10
    masks = [frame.zip.between(0, 999), frame.zip.between(500, 1499), frame.zip.between(2000, 2999),
             frame.zip >= 4000, frame.zip >= 0]  # fmt: skip
    exact = [int((mask & (frame.sex == sex)).sum()) for mask in masks for sex in (0, 1)]
    np.testing.assert_allclose(table["estimate"], exact, atol=0.5)
    assert table.iloc[0].astype(str).str.contains("zip in 0..999").any()
    with refused(PlanError):  # its cells are classes
        release.answered.estimates.marginal(("zip",))
    again = dp.Release.open(tmp_path / "run")
    np.testing.assert_allclose(again.table(("zip", "sex"), family="product")["estimate"], table["estimate"])


@pytest.mark.parametrize("statement", [
    "SELECT c, SUM(v) AS z FROM t WHERE k > m AND c <> 3 GROUP BY c",  # an array of 2,880 cells
    "SELECT zip // 1000 AS g, SUM(v) AS z FROM t GROUP BY g",
])  # fmt: skip
def test_sums_of_a_number_beside_merged_cells_are_those_of_the_rows(tmp_path, statement):
    rng = np.random.default_rng(0)
    sizes = {"c": 12, "k": 12, "m": 20, "zip": 5000}
    frame = pd.DataFrame({name: rng.integers(0, size, 3000) for name, size in sizes.items()})
    frame["v"] = rng.integers(0, 101, len(frame))
    domain = Domain(**sizes, v=dp.number(0, 100))
    plan = dp.plan(statement, domain, epsilon=20, delta=1e-9, ledger=tmp_path / "ledger.sqlite")
    answers = dp.run(plan, tmp_path / "run", data=frame).query("query-1")

    rows = frame[(frame.k > frame.m) & (frame.c != 3)] if "WHERE" in statement else frame
    groups = rows.c if "WHERE" in statement else rows.zip // 1000
    exact = rows.v.groupby(groups).sum()
    answers = answers.set_index(answers.columns[0])
    errors = answers["z"][exact.index] - exact
    assert (errors.abs() <= 7 * answers["z_std_error"][exact.index]).all()
    assert (answers["z_std_error"] < 0.2 * exact.mean()).all()
