"""The plan store: the same problem is solved once on a machine, and a damaged store costs time and nothing else."""

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.mechanisms import query_smasher
from dpscale.optimize.plan_store import VARIABLE, PlanStore, user_store


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def searches(monkeypatch):
    """The problems that were searched for longer than one look at what was known."""
    found = []
    optimise = query_smasher.optimise

    def watched(rows, shape, tolerance, seconds, start):
        found.append((rows.shape, start is not None))
        return optimise(rows, shape, tolerance, seconds, start)

    monkeypatch.setattr(query_smasher, "optimise", watched)
    return found


def workload(*more: str) -> Workload:
    asked = Workload(Domain({"a": 9, "b": 9, "c": 7})).add("prefix", degree=2).add("affine", attributes=[("a", "b")])
    for family in more:
        asked.add(family, degree=1)
    return asked


def same(left, right) -> bool:
    return [block.share for block in left.blocks] == [block.share for block in right.blocks] and all(
        np.array_equal(f.explicit(), g.explicit())
        for ours, other in zip(left.blocks, right.blocks, strict=True)
        for f, g in zip(ours.factors, other.factors, strict=True)
    )


def test_what_was_solved_is_not_solved_again(place, searches):
    first = plan(workload())
    assert not any(known for _, known in searches)
    searches.clear()
    assert same(plan(workload()), first)
    assert searches
    assert all(known for _, known in searches)


def test_a_changed_workload_costs_what_changed(place, searches):
    plan(workload(), "query-smasher")
    searches.clear()
    plan(workload("range"), "query-smasher")
    assert {known for _, known in searches} == {True, False}


def test_the_plan_is_the_same_without_a_store(place, monkeypatch):
    kept = plan(workload())
    monkeypatch.setenv(VARIABLE, "off")
    assert user_store() is None
    assert same(plan(workload()), kept)


@pytest.mark.parametrize("damage", ["cut", "wrong", "negative", "zero", "nan", "short", "pickle"])
def test_a_damaged_store_costs_time_only(place, damage):
    whole = plan(workload())
    for path in place.rglob("*.npy"):
        weights = np.load(path)
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:40])
        elif damage == "pickle":
            np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        else:
            wrong = {"wrong": np.arange(1.0, len(weights) + 1), "negative": -weights, "zero": weights * 0,
                     "nan": weights * np.nan, "short": weights[1:]}  # fmt: skip
            np.save(path, wrong[damage])
    made = plan(workload())
    assert made.error == pytest.approx(whole.error, rel=1e-6)
    assert made.optimality_gap == pytest.approx(whole.optimality_gap, abs=1e-6)


def test_a_folder_that_cannot_be_made_is_an_empty_store(tmp_path):
    (tmp_path / "file").write_text("")
    store = PlanStore(tmp_path / "file")
    store.put(np.ones(2), "key")
    assert store.get("key") is None
