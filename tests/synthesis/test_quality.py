"""Which sets rows are held against: evenly spaced, few, and found without a walk over all of them."""

from itertools import combinations
from math import comb

import pytest

from dpscale.synthesis.quality import MOST_CELLS, SETS, combination_at, sample_sets


@pytest.mark.parametrize(("count", "degree"), [(5, 1), (6, 2), (7, 3), (3, 3), (4, 5)])
def test_sets_are_numbered_as_combinations_are(count: int, degree: int) -> None:
    every = list(combinations(range(count), degree))
    assert [combination_at(number, count, degree) for number in range(len(every))] == every
    assert len(every) == comb(count, degree)


def test_of_a_thousand_attributes_few_sets_are_looked_at() -> None:
    found = sample_sets([10] * 1000)
    assert {len(kept) for kept in found} == {1, 2, 3}
    assert len(found) <= 3 * (SETS + 1)
    assert len({kept[0] for kept in found if len(kept) == 2}) > SETS / 2


def test_large_sets_are_left_out() -> None:
    assert sample_sets([MOST_CELLS, 2]) == [(0,), (1,)]
