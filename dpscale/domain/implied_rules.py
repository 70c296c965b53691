"""Consequences and contradictions of rules that compare values.

Two comparisons with an attribute of opposite signs imply one without it (Fourier and Motzkin): a ≤ b and b ≤ c imply
a ≤ c. The ends of the ranges are such comparisons of one attribute. Consequences over one and two attributes are rules
of their cells, so that estimates of small sets satisfy them; a consequence without attributes that is false is a
contradiction of the rules from which it comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpscale.base.errors import DomainError
from dpscale.base.numerics import Flags
from dpscale.domain.rule_text import FIELD, Clause, Linear
from dpscale.domain.rules import DomainConstraint, StructuralZero, ValueRule, possible

MOST_PAIR_CELLS, MOST_COMPARED = 1 << 20, 64  # cells of two rules, and rules, that are compared in pairs
Terms = tuple[tuple[str, float], ...]
ByText = Mapping[str, Sequence[StructuralZero | ValueRule]]


@dataclass(frozen=True)
class _Bound:
    """Comparison Σ_j c_j v_j + d ≤ 0, or < 0, with the rules and the eliminated attributes from which it follows."""

    terms: Terms
    constant: float
    strict: bool
    texts: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()

    @property
    def is_false(self) -> bool:
        return not self.terms and (self.constant > 0 or (self.strict and self.constant == 0))

    def scaled(self) -> _Bound:
        """Return the comparison with terms in a fixed order, of which the first has the factor 1 or -1.

        A term is (name, factor). Terms of equal comparisons become equal, so that their constants can be compared.
        """
        terms = tuple(sorted(self.terms))
        scale = abs(terms[0][1]) if terms else 1.0
        return _Bound(
            terms=tuple((name, factor / scale) for name, factor in terms),
            constant=self.constant / scale,
            strict=self.strict,
            texts=self.texts,
            without=self.without,
        )

    def joined(self, other: _Bound, name: str) -> _Bound:
        """Return the consequence without an attribute, which has opposite signs in the two.

        Each comparison is multiplied by the absolute coefficient of the other, so that the attribute cancels.
        """
        one, two = abs(dict(other.terms)[name]), abs(dict(self.terms)[name])
        terms = {own: one * factor for own, factor in self.terms}
        for own, factor in other.terms:
            terms[own] = terms.get(own, 0.0) + two * factor
        kept = tuple((own, factor) for own, factor in terms.items() if factor and own != name)
        texts = tuple(dict.fromkeys([*self.texts, *other.texts]))
        return _Bound(
            terms=kept,
            constant=one * self.constant + two * other.constant,
            strict=self.strict or other.strict,
            texts=texts,
            without=self.without | other.without | {name},
        ).scaled()


def implied_rules(rules: Sequence[DomainConstraint]) -> tuple[ValueRule, ...]:
    """Return consequences of value rules over one and two attributes.

    `pool` has the strictest comparison of each combination of terms. Only consequences of at most two attributes are
    added, so that the number of comparisons stays small.

    Raises
    ------
    DomainError
        If some rules contradict each other, or no values satisfy one.
    """
    every = [rule for rule in rules if isinstance(rule, ValueRule)]
    ranges = {name: own for rule in every for name, own in rule.ranges.items()}
    numbers = {name for rule in every for name in rule.numbers}
    pool = dict[Terms, _Bound]()
    for bound in _bounds(every, ranges):
        _add(pool, bound)

    given = set(pool)
    for name in ranges:
        above = [one for one in pool.values() if dict(one.terms).get(name, 0) > 0]
        below = [one for one in pool.values() if dict(one.terms).get(name, 0) < 0]
        for one in above:
            for other in below:
                if len((found := one.joined(other, name)).terms) <= 2:
                    _add(pool, found)

    implied = list[ValueRule]()
    for terms, one in pool.items():
        names = [name for name, _ in terms]
        known = not any(ranges[name].unknown.any() for name in one.without)
        # comparisons that are stated, that follow from ranges alone, or that contain a number, are no new rules of
        # cells
        if terms in given or not one.texts or numbers.intersection(names) or not known:
            continue
        linear = Linear(terms, one.constant, "<" if one.strict else "<=")
        rule = ValueRule(
            clause=Clause(linear=(linear,)),
            ranges={name: ranges[name] for name in names},
            numbers=(),
            text="; ".join(one.texts),
        )
        if not rule.possible(names, [len(ranges[name].low) for name in names]).all():
            implied.append(rule)
    return tuple(implied)


def _bounds(rules: Iterable[ValueRule], ranges: Mapping[str, object]) -> Iterable[_Bound]:
    """Yield the comparisons that always hold, and the ends of the ranges.

    Only rules of a single comparison, without tests of cells, always hold. An equation yields two comparisons. A bound
    states Σ factor · value + constant ≤ 0, or < 0 if it is strict.
    """
    for rule in rules:
        if rule.clause.cells or len(rule.clause.linear) != 1:
            continue
        [linear] = rule.clause.linear
        yield _Bound(
            terms=linear.terms, constant=linear.constant, strict=linear.sign == "<", texts=(rule.text,)
        ).scaled()
        if linear.sign == "=":
            opposite = tuple((name, -factor) for name, factor in linear.terms)
            yield _Bound(terms=opposite, constant=-linear.constant, strict=False, texts=(rule.text,)).scaled()

    for name, own in ranges.items():
        low, high = own.ends  # type: ignore[attr-defined]
        yield _Bound(((name, 1.0),), -high, False)
        yield _Bound(((name, -1.0),), low, False)


def _add(pool: dict[Terms, _Bound], bound: _Bound) -> None:
    """Add a comparison unless a stronger one is known. Raises DomainError for a contradiction.

    `pool` has the strongest comparison for each left side. A larger constant is stronger, then a strict one.
    Comparisons without terms that hold are not added.
    """
    if bound.is_false:
        raise _contradiction(bound.texts)
    known = pool.get(bound.terms)
    if bound.terms and (known is None or (bound.constant, bound.strict) > (known.constant, known.strict)):
        pool[bound.terms] = bound


def _contradiction(texts: Sequence[str]) -> DomainError:
    """Return the error for one rule that no values satisfy, or for several that contradict each other."""
    if len(texts) == 1:
        return DomainError(FIELD, f"{texts[0]!r}, which no values of the domain satisfy",
                           "a rule that some values satisfy", "correct it, or its attributes")  # fmt: skip
    return DomainError(FIELD, f"{' and '.join(map(repr, texts))}, which contradict each other",
                       "rules that some values satisfy together", "remove one")  # fmt: skip


def check_contradictions(rules: ByText, sizes: Mapping[str, int], listed: Mapping[str, int]) -> None:
    """Raise DomainError for a rule without possible cells, and for two rules, or all, without any in common.

    `tables` has the attributes and constraints of the rules whose cells are few enough to be compared.

    Parameters
    ----------
    rules : mapping of str to sequence of constraints
        Constraints by the text of their rule.
    sizes, listed : mapping of str to int
        Number of cells of each attribute, and of those with a known value.
    """
    tables = {}
    for text, own in rules.items():
        names = tuple(dict.fromkeys(name for rule in own for name in rule.names))
        if names and math.prod(sizes[name] for name in names) <= MOST_PAIR_CELLS:
            tables[text] = names, own
            # one rule alone
            if not _allowed(own, names, sizes).any():
                raise _contradiction([text])

    # two rules with an attribute in common
    for (one, (names, own)), (other, (others, more)) in (
        combinations(tables.items(), 2) if len(tables) <= MOST_COMPARED else ()
    ):
        both = tuple(dict.fromkeys([*names, *others]))
        if set(names) & set(others) and math.prod(listed[name] for name in both) <= MOST_PAIR_CELLS:
            known = tuple(slice(listed[name]) for name in both)
            # known values alone: with a null both rules hold, which would hide the contradiction
            allowed = [_allowed(rules, both, sizes)[known] for rules in (own, more)]
            if allowed[0].any() and allowed[1].any() and not (allowed[0] & allowed[1]).any():
                raise _contradiction([one, other])

    # all rules together, if all their attributes have few enough cells
    names = tuple(dict.fromkeys(name for own, _ in tables.values() for name in own))
    whole = math.prod(sizes[name] for name in names) <= MOST_PAIR_CELLS
    if names and whole and not _allowed([rule for _, own in tables.values() for rule in own], names, sizes).any():
        raise _contradiction(list(tables))


def _allowed(rules: Sequence[DomainConstraint], names: Sequence[str], sizes: Mapping[str, int]) -> Flags:
    return np.asarray(possible([rule for rule in rules if rule.names], names, [sizes[name] for name in names]))
