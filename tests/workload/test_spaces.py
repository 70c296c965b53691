"""Decomposed workloads in columns, against a loop over sets, to the last bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

import dpscale as dp
from dpscale.workload import ProductPart, decompose, subworkloads as module
from dpscale.workload.factors import axis_of, piece_factor
from dpscale.workload.residual import subsets
from dpscale.workload.subworkloads import Left, RequestedResiduals, alike
from tests.strategies import workloads


def decompose_by_loop(workload):
    """Return the terms of every space, set by set and piece by piece."""
    found = {}
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            for subset in subsets(tuple(range(len(names)))):
                key, value = residual_piece(part, names, subset, weight)
                own = found.setdefault(tuple(names[i] for i in subset), {})
                if value > 0:
                    own[key] = own.get(key, 0.0) + value
    return {names: terms for names, terms in found.items() if sum(terms.values()) > 0}


def residual_piece(part, names, subset, weight):
    if not isinstance(part, ProductPart):
        factor, own = piece_factor(part, names, subset, (None,) * len(names))
        return ((factor.key,) if subset and factor else ()), weight * own if factor else 0.0
    axes = [axis_of(family, part.domain[name].size) for family, name in zip(part.families(names), names, strict=True)]
    for i, axis in enumerate(axes):
        weight *= axis.weight if i in subset else axis.mean_square
    return tuple(axes[i].factor.key for i in subset), weight


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_decomposed_columns_equal_loop(workload):
    right, made = decompose_by_loop(workload), decompose(workload)
    assert {one.attributes: one.terms for one in made} == right
    assert [list(one.terms) for one in made] == [list(right[one.attributes]) for one in made]
    place = workload.domain.names.index
    keys = [(len(one.attributes), [place(name) for name in one.attributes]) for one in made]
    assert keys == sorted(keys)
    assert [made[i].attributes for i in made.firsts] == [one.attributes for one in made.classes]


def test_large_mixed_workload_has_few_classes():
    names = 60
    workload = dp.Workload(dp.Domain({f"x{i}": 10 for i in range(names)}))
    made = decompose(workload.add("range", degree=1).add("affine", degree=2).add("prefix", degree=3))
    assert len(made) == 1 + names + math.comb(names, 2) + math.comb(names, 3)
    assert len(made.classes) == 4
    assert made[-1].attributes == ("x57", "x58", "x59")


@pytest.mark.parametrize("room", [-4000, 1 << 20])
@pytest.mark.parametrize("largest", [2, 1 << 62])
def test_summation_paths_give_equal_terms(room, largest, monkeypatch):
    """The paths use tables or sorting, and spaces as numbers or bytes; terms are summed in the order of the sets."""
    monkeypatch.setattr(module, "ROOM", room)
    monkeypatch.setattr(module, "LARGEST_CODE", largest)
    rng = np.random.default_rng(1)
    names = tuple("abcdef")
    sets = [tuple(sorted(rng.choice(names, 3, replace=False).tolist())) for _ in range(300)]
    weights, requested, right = rng.random(300) ** 9, RequestedResiduals(names), {}
    requested.add(sets, weights, np.zeros(6, np.int64), lambda own: [Left(subset, len(subset) % 2, (0.1, 3.0))
                                                                 for subset in subsets((0, 1, 2))])  # fmt: skip
    for own, weight in zip(sets, weights.tolist(), strict=True):
        for subset in subsets(own):
            right[subset] = right.get(subset, 0.0) + weight * 0.1 * 3.0
    for degree in requested.degrees():
        found = requested.classes(degree, 2)
        terms_by_names = {tuple(names[i] for i in row): found.terms[which] for row, which in
                zip(found.members.tolist(), found.which.tolist(), strict=True)}  # fmt: skip
        assert terms_by_names == {
            subset: ((degree % 2, value),) for subset, value in right.items() if len(subset) == degree
        }


def test_colliding_hashes_are_distinguished(monkeypatch):
    rows = np.random.default_rng(2).integers(0, 3, (500, 3))
    right = np.unique(rows, axis=0, return_index=True)[1]
    assert sorted(alike(rows)[0]) == sorted(right)
    monkeypatch.setattr(module, "MIXED", ((30, np.uint64(0)),))  # all words are one
    first, which = alike(rows)
    assert sorted(first) == sorted(right)
    np.testing.assert_array_equal(rows[first[which]], rows)
