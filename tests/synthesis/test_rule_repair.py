"""Rules of the domain in rows: rows that break a rule are repaired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from dpscale import Domain, PlanError
from dpscale.domain.rules import FunctionalDependency, StructuralZero, possible as possible_cells
from dpscale.privacy.streams import PublicStream
from dpscale.synthesis.one_way_rounding import RuleRepair
from tests.messages import refused

ATTRIBUTES: dict[str, Any] = {
    "age": {"kind": "integer", "low": 0, "high": 5},
    "marital": {"kind": "categories", "values": ["single", "married"], "nulls": "category"},
    "code": {"kind": "categories", "values": ["A1", "A2", "B1"]},
    "region": {"kind": "categories", "values": ["north", "south"]},
    "income": {"kind": "bins", "edges": [0, 10, 20, 30]},
}
RULES = [
    "if age <= 2 then marital != 'married'",
    "not (age <= 1 and income >= 10 and region = 'north')",
    "if code in ('A1', 'A2') then region = 'north'",
    "if code = 'B1' then region = 'south'",
]


def make_domain(rules: list[str] = RULES) -> Domain:
    return Domain.from_dict({"attributes": ATTRIBUTES, "rule": [{"rule": rule} for rule in rules]})


def is_impossible(row: Mapping[str, int]) -> bool:
    """Return whether a row of cells is impossible, with the rules written by hand."""
    young_married = row["age"] <= 2 and row["marital"] == 1
    rich_child = row["age"] <= 1 and row["income"] >= 1 and row["region"] == 0
    return young_married or rich_child or (row["region"] == 0) != (row["code"] < 2)


def test_impossible_rows_are_repaired_with_few_changes() -> None:
    """Rows exchange values where they can: few others change, and 1-way marginals nearly remain."""
    domain, rng = make_domain(), np.random.default_rng(0)
    ones = {name: rng.random(domain[name].size) + 0.2 for name in domain.names}
    rows = np.stack([rng.integers(0, domain[name].size, 4000) for name in domain.names], axis=1).astype(np.int32)
    wrong = np.array([is_impossible(dict(zip(domain.names, row, strict=True))) for row in rows])
    possible = RuleRepair(domain.rules, domain.names, ones)
    assert (possible.broken(rows) == wrong).all()
    repaired = possible.repair(rows, PublicStream("r", "possible"))
    assert not any(is_impossible(dict(zip(domain.names, row, strict=True))) for row in repaired)
    assert (repaired != rows).any(axis=1).sum() < 2 * wrong.sum()
    for column in range(5):
        before, after = (np.bincount(own[:, column], minlength=6) for own in (rows, repaired))
        assert np.abs(after - before).sum() < 0.4 * wrong.sum()
    assert 0.3 < wrong.mean() < 0.9


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_rules_are_obeyed_or_refused(data: st.DataObject) -> None:
    sizes = {"a": 3, "b": 2, "c": 4}
    names = list(sizes)
    cells = {name: st.frozensets(st.integers(0, size - 1), min_size=1) for name, size in sizes.items()}
    rule = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).flatmap(
        lambda chosen: st.tuples(*[st.tuples(st.just(name), cells[name]) for name in chosen]).map(StructuralZero)
    )
    of = st.permutations(names).flatmap(
        lambda two: st.tuples(*[st.integers(-1, sizes[two[1]] - 1)] * sizes[two[0]]).map(
            lambda cells: FunctionalDependency(two[0], two[1], cells)
        )
    )
    rules = data.draw(st.lists(rule | of, max_size=4))
    rows = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, [3, 2, 4], (30, 3)).astype(np.int32)
    possible = RuleRepair(rules, names, {name: np.ones(size) for name, size in sizes.items()})
    cells = np.indices((3, 2, 4)).reshape(3, -1).T.astype(np.int32)
    assert (possible_cells(rules, names, (3, 2, 4)).reshape(-1) == ~possible.broken(cells)).all()
    try:
        repaired = possible.repair(rows, PublicStream("r", "possible"))
    except PlanError:
        return
    assert not possible.broken(repaired).any()


def test_rules_that_exclude_every_row_are_refused() -> None:
    rules = [StructuralZero((("a", frozenset({0, 1, 2})),))]
    with refused(PlanError):
        RuleRepair(rules, ["a"], {"a": np.ones(3)}).repair(np.zeros((4, 1), np.int32), PublicStream("r", "possible"))


def test_rules_round_trip_through_domain_file() -> None:
    own = make_domain()
    assert Domain.from_dict(own.to_dict()) == own
    assert own != Domain.from_dict({"attributes": ATTRIBUTES})
    assert own.digest != Domain.from_dict({"attributes": ATTRIBUTES}).digest
    assert own.rules[0] == StructuralZero((("age", frozenset({0, 1, 2})), ("marital", frozenset({1}))))
