"""Choice of the sets that rows are compared on: evenly spaced, few, and found without enumeration."""

from itertools import combinations
from math import comb

import pytest

from dpscale.synthesis.quality import MOST_CELLS, SETS, combination_at, sample_sets


@pytest.mark.parametrize(("count", "degree"), [(5, 1), (6, 2), (7, 3), (3, 3), (4, 5)])
def test_combination_at_equals_itertools(count: int, degree: int) -> None:
    every = list(combinations(range(count), degree))
    assert [combination_at(number, count, degree) for number in range(len(every))] == every
    assert len(every) == comb(count, degree)


def test_sample_of_sets_of_many_attributes_is_bounded() -> None:
    found = sample_sets([10] * 1000)
    assert {len(subset) for subset in found} == {1, 2, 3}
    assert len(found) <= 3 * (SETS + 1)
    assert len({subset[0] for subset in found if len(subset) == 2}) > SETS / 2


def test_large_sets_are_left_out() -> None:
    assert sample_sets([MOST_CELLS, 2]) == [(0,), (1,)]
