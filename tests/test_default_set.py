"""The default set has every test of sensitivity, charges, kills and planted faults; others enter by new branches."""

from tests.default_set import choose, describe, is_always, rest


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
