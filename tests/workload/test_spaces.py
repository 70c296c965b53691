"""Residual spaces in columns are what a loop over sets makes of them, to the last bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

import dpscale as dp
from dpscale.workload import ProductPart, decompose, spaces as module
from dpscale.workload.factors import axis_of, piece_factor
from dpscale.workload.residual import subsets
from dpscale.workload.spaces import Left, RequestedResiduals, alike
from tests.strategies import workloads


def one_by_one(workload):
    """Terms of every space, set by set and piece by piece."""
    found = {}
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            for kept in subsets(tuple(range(len(names)))):
                key, value = piece(part, names, kept, weight)
                own = found.setdefault(tuple(names[i] for i in kept), {})
                if value > 0:
                    own[key] = own.get(key, 0.0) + value
    return {names: terms for names, terms in found.items() if sum(terms.values()) > 0}


def piece(part, names, kept, weight):
    if not isinstance(part, ProductPart):
        factor, own = piece_factor(part, names, kept, (None,) * len(names))
        return ((factor.key,) if kept and factor else ()), weight * own if factor else 0.0
    axes = [
        axis_of(family.name, part.domain[name].size) for family, name in zip(part.families(names), names, strict=True)
    ]
    for i, axis in enumerate(axes):
        weight *= axis.weight if i in kept else axis.mean_square
    return tuple(axes[i].factor.key for i in kept), weight


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_columns_are_what_a_loop_makes(workload):
    right, made = one_by_one(workload), decompose(workload)
    assert {one.attributes: one.terms for one in made} == right
    assert [list(one.terms) for one in made] == [list(right[one.attributes]) for one in made]
    place = workload.domain.names.index
    keys = [(len(one.attributes), [place(name) for name in one.attributes]) for one in made]
    assert keys == sorted(keys)
    assert [made[i].attributes for i in made.firsts] == [one.attributes for one in made.classes]


def test_a_mixed_workload_of_many_attributes_is_few_classes():
    names = 60
    workload = dp.Workload(dp.Domain({f"x{i}": 10 for i in range(names)}))
    made = decompose(workload.add("range", degree=1).add("affine", degree=2).add("prefix", degree=3))
    assert len(made) == 1 + names + math.comb(names, 2) + math.comb(names, 3)
    assert len(made.classes) == 4
    assert made[-1].attributes == ("x57", "x58", "x59")


@pytest.mark.parametrize("room", [-4000, 1 << 20])
@pytest.mark.parametrize("largest", [2, 1 << 62])
def test_every_way_to_sum_is_the_same(room, largest, monkeypatch):
    """With tables and by sorting, spaces as numbers and as bytes; sums are in the order of the sets."""
    monkeypatch.setattr(module, "ROOM", room)
    monkeypatch.setattr(module, "LARGEST_CODE", largest)
    rng = np.random.default_rng(1)
    names = tuple("abcdef")
    sets = [tuple(sorted(rng.choice(names, 3, replace=False).tolist())) for _ in range(300)]
    weights, asked, right = rng.random(300) ** 9, RequestedResiduals(names), {}
    asked.add(sets, weights, np.zeros(6, np.int64), lambda own: [Left(kept, len(kept) % 2, (0.1, 3.0))
                                                                 for kept in subsets((0, 1, 2))])  # fmt: skip
    for own, weight in zip(sets, weights.tolist(), strict=True):
        for kept in subsets(own):
            right[kept] = right.get(kept, 0.0) + weight * 0.1 * 3.0
    for degree in asked.degrees():
        found = asked.classes(degree, 2)
        told = {tuple(names[i] for i in row): found.terms[which] for row, which in
                zip(found.members.tolist(), found.which.tolist(), strict=True)}  # fmt: skip
        assert told == {kept: ((degree % 2, value),) for kept, value in right.items() if len(kept) == degree}


def test_words_that_meet_by_chance_are_told_apart(monkeypatch):
    rows = np.random.default_rng(2).integers(0, 3, (500, 3))
    right = np.unique(rows, axis=0, return_index=True)[1]
    assert sorted(alike(rows)[0]) == sorted(right)
    monkeypatch.setattr(module, "MIXED", ((30, np.uint64(0)),))  # all words are one
    first, which = alike(rows)
    assert sorted(first) == sorted(right)
    np.testing.assert_array_equal(rows[first[which]], rows)
