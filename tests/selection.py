"""Selection of cases: all of them at night, the first or some in the usual tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return the cases as parameters; those that are not in `quick` are marked as slow."""
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in cases]
