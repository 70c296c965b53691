"""The default set has every test of sensitivity, charges, kills and planted faults; others enter by new branches."""

import pickle
import re
from pathlib import Path

from tests.default_set import REPEATED, choose, describe, is_always, numbers_of, read_costs, rest, set_of

ROOT = Path(__file__).parents[1]


def test_tests_enter_by_new_branches_for_their_cost():
    costs = {
        "a::test_charge_is_made_once": (30.0, 0b1),
        "a::test_same_branches": (2.0, 0b1),
        "a::test_cheap": (1.0, 0b110),
        "a::test_costly": (8.0, 0b11110),
        "a::test_huge": (90.0, 0b100000),
    }
    assert choose(costs, budget=40) == ["a::test_costly", "a::test_huge"]
    assert choose(costs, budget=41) == ["a::test_huge"]
    assert choose(costs, budget=1) == ["a::test_cheap", "a::test_costly", "a::test_huge", "a::test_same_branches"]
    assert describe(costs, {"a::test_huge"}) == "4 of 5 tests, 41 of 131 CPU s, 5 of 6 branches"


def test_no_guard_of_privacy_is_outside_the_default_set():
    assert [name for name in rest() if is_always(name)] == []
    assert is_always("tests/cluster/test_jobs.py::test_killed_workers_in_stage_do_not_change_release")
    assert not is_always("tests/cluster/test_driver.py::test_driver_killed_with_worker_is_restarted")


def test_a_repeated_guard_names_a_guard_of_the_default_set():
    assert set(REPEATED) <= rest()
    for name in REPEATED.values():
        assert is_always(name)
        path, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.M), name


def test_seconds_of_a_second_measurement_count(tmp_path):
    (tmp_path / "seconds").mkdir()
    first = [("file", 1, 2), ("file", 2, 3)], {"a": (9.0, set_of([0])), "b": (8.0, set_of([1]))}
    (tmp_path / "1.pickle").write_bytes(pickle.dumps(first))
    (tmp_path / "seconds" / "2.pickle").write_bytes(pickle.dumps(([], {"a": (2.0, 0)})))
    places, costs = read_costs(tmp_path, tmp_path / "seconds")
    assert places == first[0]
    assert {name: (seconds, list(numbers_of(bits))) for name, (seconds, bits) in costs.items()} == {
        "a": (2.0, [0]), "b": (8.0, [1])}  # fmt: skip
