"""Values inside cells satisfy the rules: compared with a direct evaluation, and with all values of small cells."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from dpscale import Domain
from dpscale.base.numerics import Floats
from dpscale.domain.rule_text import value_ranges
from dpscale.privacy.streams import PublicStream
from dpscale.synthesis.rule_values import RowCells, RuleValues
from tests.messages import refused

ATTRIBUTES: dict[str, Any] = {
    "a": {"kind": "bins", "edges": [0, 4, 8, 12]},
    "b": {"kind": "bins", "edges": [0, 3, 6, 12], "nulls": "category"},
    "c": {"kind": "bins", "edges": [0, 2, 9, 15, 24]},
    "m": {"kind": "date", "by": "month", "low": "2020-01", "high": "2020-04"},
    "d": {"kind": "date", "by": "week", "low": "2020-W01", "high": "2020-W18"},
    "k": {"kind": "coded", "size": 3},
}
CASES: dict[str, Any] = {
    "a <= b": lambda a, b: a <= b,
    "a < b <= c": lambda a, b, c: (a < b) & (b <= c),
    "a + b = c": lambda a, b, c: a + b == c,
    "2 * a + 1 >= c": lambda a, c: 2 * a + 1 >= c,
    "a = b or c > 8": lambda a, b, c: (a == b) | (c > 8),
    "if k = 1 then a < c": lambda k, a, c: (k != 1) | (a < c),
    "a != b": lambda a, b: a != b,
    "if a >= 5 then b < a": lambda a, b: (a < 5) | (b < a),
    "m <= d <= m + 10": lambda m, d: (m <= d) & (d <= m + 10),
    "d > 2020-02-17": lambda d: d > 18309,
}


def make_rules(texts: list[str], step: float = 1.0) -> tuple[Domain, RuleValues]:
    domain = Domain.from_dict({"attributes": ATTRIBUTES, "rule": [{"rule": text} for text in texts]})
    ranges = {name: value_ranges(domain[name], step if domain[name].kind == "bins" else None) for name in domain.names}
    rules = [rule.with_ranges({name: ranges[name] for name in rule.names}) for rule in domain.value_rules]
    return domain, RuleValues.over(rules, domain.names)


def independent(rules: RuleValues, cells: RowCells, seed: int) -> dict[str, Floats]:
    return rules._independent(cells, PublicStream(str(seed), "values").uniforms, {})


def values_of(domain: Domain, name: str, cell: int) -> np.ndarray:
    ranges = value_ranges(domain[name], 1.0 if domain[name].kind == "bins" else None)
    return np.arange(ranges.low[cell], ranges.high[cell] + 1)


@pytest.mark.parametrize("text", CASES)
def test_values_satisfy_rules_wherever_some_values_do(text: str) -> None:
    """Brute force over all whole values of all cells decides which rows are possible."""
    domain, rules = make_rules([text])
    law = CASES[text]
    names = law.__code__.co_varnames
    every = np.array(list(product(*map(range, domain.shape(names)))), np.int32)
    null = domain["b"].null_cell
    known = every if "b" not in names else every[every[:, names.index("b")] != null]
    expected = []
    for row in known:
        grid = np.meshgrid(*(values_of(domain, name, cell) for name, cell in zip(names, row, strict=True)))
        expected.append(bool(law(*grid).any()))
    possible = rules.are_possible(RowCells.of(names, known))
    assert possible.tolist() == expected

    rows = np.repeat(known[possible], 40, axis=0)
    cells = RowCells.of(names, rows)
    before = independent(rules, cells, 1)
    after = rules.fitted(cells, before, PublicStream("r", "values"))
    columns = [after.get(name, rows[:, at]) for at, name in enumerate(names)]
    assert law(*columns).all()
    for name, values in after.items():
        ranges = value_ranges(domain[name], 1.0 if domain[name].kind == "bins" else None)
        cell = rows[:, names.index(name)]
        assert ((values >= ranges.low[cell]) & (values <= ranges.high[cell]) & (values == np.rint(values))).all()
    kept = law(*[before.get(name, rows[:, at]) for at, name in enumerate(names)])
    assert all((after[name] == before[name])[kept].all() for name in after)
    assert not kept.all()  # rows that are drawn without rules break them


def test_nulls_break_no_rule() -> None:
    domain, rules = make_rules(["a < b", "b < c"])
    null = domain["b"].null_cell
    rows = np.array([[2, null, 0]], np.int32)
    cells = RowCells.of("abc", rows)
    assert rules.are_possible(cells).all()
    assert not rules.broken(cells, {name: np.array([9.0]) for name in "abc"}).any()


def test_several_rules_hold_together() -> None:
    """Cells of which each rule alone has values, but not all together, are not possible.

    The rules have a cycle of sums, so that a few possible rows may be given up, but none is wrong.
    """
    domain, rules = make_rules(["a <= b", "b <= c", "a + 3 >= c", "if k = 2 then a + b = c"])
    names = ("a", "b", "c", "k")
    every = np.array(list(product(range(3), range(3), range(4), range(3))), np.int32)

    def law(a: Any, b: Any, c: Any, k: Any) -> Any:
        return (a <= b) & (b <= c) & (a + 3 >= c) & ((k != 2) | (a + b == c))

    expected = [
        bool(law(*np.meshgrid(*(values_of(domain, name, cell) for name, cell in zip("abc", row, strict=False))), row[3])
             .any()) for row in every
    ]  # fmt: skip
    cells = RowCells.of(names, every)
    possible = rules.are_possible(cells)
    assert not (possible & ~np.array(expected)).any()
    assert possible.sum() >= 0.9 * sum(expected)
    rows = np.repeat(every[possible], 100, axis=0)
    cells = RowCells.of(names, rows)
    after = rules.fitted(cells, independent(rules, cells, 3), PublicStream("r", "values"))
    assert law(*(after[name] for name in "abc"), rows[:, 3]).all()


def test_values_are_uniform_in_the_permitted_region() -> None:
    _, rules = make_rules(["a <= b"])
    rows = np.zeros((20_000, 2), np.int32)  # a in 0 … 3, b in 0 … 2
    cells = RowCells.of("ab", rows)
    after = rules.fitted(cells, independent(rules, cells, 5), PublicStream("r", "values"))
    found = np.bincount((3 * after["a"] + after["b"]).astype(int), minlength=12).reshape(4, 3)
    allowed = np.arange(4)[:, None] <= np.arange(3)
    assert not found[~allowed].any()
    assert chisquare(found[allowed]).pvalue > 1e-6


@pytest.mark.parametrize("step", [0.0, 0.25, 0.01])
def test_real_numbers_and_decimals(step: float) -> None:
    _, rules = make_rules(["a < b", "a + b = c"], step)
    rows = np.repeat(np.array([[0, 0, 0], [0, 1, 1], [1, 2, 3], [0, 0, 1]], np.int32), 500, axis=0)
    cells = RowCells.of("abc", rows)
    assert rules.are_possible(cells).all()
    after = rules.fitted(cells, independent(rules, cells, 2), PublicStream("r", "values"))
    assert (after["a"] < after["b"]).all()
    assert np.allclose(after["a"] + after["b"], after["c"], rtol=1e-12, atol=1e-12)
    if step:
        lattice = {name: np.rint(after[name] / step).astype(int) for name in "abc"}
        assert all(np.allclose(lattice[name] * step, after[name], atol=1e-12) for name in "abc")
        assert (lattice["a"] + lattice["b"] == lattice["c"]).all()


def test_numbers_move_only_as_far_as_needed() -> None:
    tables = {"part": {"low": 0, "high": 100}, "rest": {"low": 0, "high": 100}, "whole": {"low": 0, "high": 200}}
    domain = Domain.from_dict({"attributes": {"k": {"kind": "coded", "size": 2}}, "numbers": tables,
                               "rule": [{"rule": "part + rest = whole"}, {"rule": "part <= rest"}]})  # fmt: skip
    rules = RuleValues.over(domain.value_rules, [*domain.names, *tables])
    rng = np.random.default_rng(0)
    before = {name: rng.integers(0, 100, 300).astype(float) for name in tables}
    cells = RowCells.of(["k"], np.zeros((300, 1), np.int32), {name: one.astype(int) for name, one in before.items()})
    after = rules.fitted(cells, before, PublicStream("r", "values"))
    assert (after["part"] + after["rest"] == after["whole"]).all()
    assert (after["part"] <= after["rest"]).all()
    kept = before["part"] <= before["rest"]
    assert (after["part"][kept] == before["part"][kept]).all()
    assert (after["rest"][kept] == before["rest"][kept]).all()


def test_rows_without_possible_values_are_not_passed_over() -> None:
    _, rules = make_rules(["a < b"])
    rows = np.array([[2, 0]], np.int32)
    cells = RowCells.of("ab", rows)
    with refused(RuntimeError):
        rules.fitted(cells, independent(rules, cells, 0), PublicStream("r", "values"))
