"""The default set has every test of sensitivity, charges, kills and planted faults, and is cut by cost."""

from tests.default_set import ALWAYS, BUDGET, choose, rest


def test_costly_tests_are_outside_and_guards_of_privacy_inside():
    seconds = {"a::test_cheap": 1.0, "a::test_costly": BUDGET, "a::test_charge_is_made_once": BUDGET / 2}
    assert choose(seconds) == ["a::test_costly"]


def test_no_guard_of_privacy_is_outside_the_default_set():
    assert [name for name in rest() if ALWAYS.search(name)] == []
