"""The plan store: a problem is solved once per machine, and a damaged store affects nothing but the time."""

import shutil

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.mechanisms import query_smasher
from dpscale.mechanisms.contract import VARIABLE, PlanStore, user_store


@pytest.fixture
def store_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def searches(monkeypatch):
    """The problems that were optimised, with a flag for a start from a stored solution."""
    found = []
    optimise = query_smasher.optimise

    def record_search(rows, shape, tolerance, seconds, start):
        found.append((rows.shape, start is not None))
        return optimise(rows, shape, tolerance, seconds, start)

    monkeypatch.setattr(query_smasher, "optimise", record_search)
    return found


def make_workload(*more: str) -> Workload:
    workload = Workload(Domain({"a": 9, "b": 9, "c": 7})).add("prefix", degree=2).add("affine", attributes=[("a", "b")])
    for family in more:
        workload.add(family, degree=1)
    return workload


def equal_plans(left, right) -> bool:
    return [block.share for block in left.blocks] == [block.share for block in right.blocks] and all(
        np.array_equal(f.explicit(), g.explicit())
        for ours, other in zip(left.blocks, right.blocks, strict=True)
        for f, g in zip(ours.factors, other.factors, strict=True)
    )


def test_stored_problems_start_from_solution(store_folder, searches):
    first = plan(make_workload())
    assert not any(known for _, known in searches)
    searches.clear()
    assert equal_plans(plan(make_workload()), first)
    assert searches
    assert all(known for _, known in searches)


def test_changed_workload_searches_new_problems_only(store_folder, searches):
    plan(make_workload(), "query-smasher")
    searches.clear()
    plan(make_workload("range"), "query-smasher")
    assert {known for _, known in searches} == {True, False}


def test_plan_is_the_same_without_store(store_folder, monkeypatch):
    stored = plan(make_workload())
    monkeypatch.setenv(VARIABLE, "off")
    assert user_store() is None
    assert equal_plans(plan(make_workload()), stored)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A plan and the folder in which it is stored."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        return plan(make_workload()), folder


@pytest.mark.sampled(4)
@pytest.mark.parametrize("damage", ["cut", "wrong", "negative", "zero", "nan", "short", "pickle"])
def test_damaged_store_gives_same_plan(store_folder, stored, damage):
    original, folder = stored
    shutil.copytree(folder, store_folder)
    assert list(store_folder.rglob("*.npy"))
    for path in store_folder.rglob("*.npy"):
        weights = np.load(path)
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:40])
        elif damage == "pickle":
            np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        else:
            wrong = {"wrong": np.arange(1.0, len(weights) + 1), "negative": -weights, "zero": weights * 0,
                     "nan": weights * np.nan, "short": weights[1:]}  # fmt: skip
            np.save(path, wrong[damage])
    built = plan(make_workload())
    assert built.error == pytest.approx(original.error, rel=2e-3)
    assert built.optimality_gap == pytest.approx(original.optimality_gap, abs=2e-3)


def test_store_in_unusable_folder_is_empty(tmp_path):
    (tmp_path / "file").write_text("")
    store = PlanStore(tmp_path / "file")
    store.put(np.ones(2), "key")
    assert store.get("key") is None
