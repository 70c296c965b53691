"""Ten tabulations of persons in the Summary File 1 of 2010: 4,151 counting queries (HDMM, section 2).

The tables are P1, P3, P4, P5, P8 to P12 with P12A to P12I, and PCT12 with PCT12A to PCT12O. Cell r of `race` is the
combination of races whose bits are set in r; 0 is no race. The paper does not list its predicates; these are those of
the published tables.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dpscale.domain import Domain
from dpscale.workload import Workload

RACES, AGES = 64, 115
GROUPS = (0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85, AGES)
SINGLE = (*range(101), 105, 110, AGES)
HISPANIC, OTHERS = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])


def census_domain(states: int = 0) -> Domain:
    """Return the domain of `data/schemas/sf1.toml`, with an attribute for the states if there are any."""
    state = {"state": states} if states else {}
    return Domain(state | {"hispanic": 2, "sex": 2, "race": RACES, "relationship": 17, "age": AGES})


def census_workload(states: int = 0) -> Workload:
    """Return the workload; with `states` also every query for each state (SF1+)."""
    workload = Workload(census_domain(states))
    for queries in _tables():
        workload.add_product(queries or {"sex": "total"})
        if states:
            workload.add_product(queries | {"state": "identity"})
    return workload


def _tables() -> Iterator[dict[str, np.ndarray]]:
    number = np.array([bin(cell).count("1") for cell in range(RACES)])
    cells, every = np.eye(RACES), np.ones((1, RACES))
    alone = np.vstack([cells[[1 << bit for bit in range(6)]], number >= 2])
    by_number = np.array([number == 1, number >= 2, *(number == own for own in range(2, 7))], float)
    detailed = np.vstack([every, by_number, cells[1:]])
    adult = {"age": np.array([np.arange(AGES) >= 18], float)}
    yield from ({}, {"race": np.vstack([every, alone])}, {"hispanic": np.array([[1, 1], [1, 0], [0, 1.0]])})
    yield from ({}, {"hispanic": np.eye(2), "race": np.vstack([every, alone])})
    for universe in ({}, adult):
        yield from (universe | {"race": detailed}, universe, universe | {"hispanic": HISPANIC})
        yield universe | {"hispanic": OTHERS, "race": detailed}
    for ages, white in ((GROUPS, cells[[1]]), (SINGLE, alone)):
        intervals = [(np.arange(AGES) >= low) & (np.arange(AGES) < high) for low, high in pairwise(ages)]
        by_sex = {"sex": np.eye(2), "age": np.vstack([np.ones((1, AGES)), *intervals])}
        for universe in ({}, {"race": alone}, {"hispanic": HISPANIC}, {"hispanic": OTHERS, "race": white}):
            yield universe
            yield universe | by_sex
