"""Attribute sets and blocks stored in columns, against tuples of names; validation of columns read from a file."""

import json
from itertools import combinations

import numpy as np
import pytest

from dpscale import Domain, JobError, Workload, plan
from dpscale.plans.attribute_sets import AttributeSets, count_sources
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import center_factor, identity_factor
from dpscale.plans.measurement_plan import BlockRequests, draw_of, plan_draws
from dpscale.plans.plan import is_consistent, read_plan, write_plan
from dpscale.privacy.streams import canonical
from tests.messages import refused

NAMES = tuple("abcdefg")
ALL = [names for k in range(5) for names in combinations(NAMES, k)]


def shuffle_sets(seed=0, most=60):
    rng = np.random.default_rng(seed)
    return [ALL[i] for i in rng.permutation(len(ALL))[:most]]


def test_attribute_sets_behave_like_list_of_tuples():
    given = shuffle_sets()
    sets = AttributeSets.of(NAMES, given)
    assert list(sets) == given == [sets[i] for i in range(len(sets))]
    assert sets[-1] == given[-1]
    assert sets[2:5] == given[2:5]
    assert sets.degrees.tolist() == [len(names) for names in given]
    wanted = np.array([7, 3, 3, 40])
    assert list(sets.take(wanted)) == [given[i] for i in wanted]
    values = np.arange(7.0) + 1
    assert sets.sums(values).tolist() == [sum(values[NAMES.index(name)] for name in names) for names in given]


def test_find_and_locate_return_positions():
    given = shuffle_sets()
    sets = AttributeSets.of(NAMES, [*given, given[5]])
    for names in ALL:
        assert sets.find(names) == [i for i, one in enumerate([*given, given[5]]) if one == names]
    assert sets.find(("a", "unknown")) == []
    assert not sets.distinct
    alone = AttributeSets.of(NAMES, given)
    assert alone.distinct
    for degree in range(5):
        wanted_sets = [names for names in ALL if len(names) == degree]
        expected = [given.index(names) if names in given else -1 for names in wanted_sets]
        assert alone.locate(alone.positions(wanted_sets)).tolist() == expected


def test_sets_of_more_attributes_than_all_others_together_are_absent():
    few = AttributeSets.of(NAMES, [("a",), ()])
    for wanted in ([("a", "b")], [("a", "b", "c"), ("b", "c", "d")]):
        assert few.locate(few.positions(wanted)).tolist() == [-1] * len(wanted)
    assert few.locate(few.positions([("b",), ("a",)])).tolist() == [-1, 0]
    assert few.locate(few.positions([()])).tolist() == [1]
    none = AttributeSets.of(NAMES, [])
    assert none.locate(none.positions([("a", "b")])).tolist() == [-1]


def test_sets_with_colliding_hashes_are_distinguished():
    """Two attributes get the random words of two others, so that their sets collide."""
    sets = AttributeSets.of(NAMES, [("a", "b"), ("c", "d")])
    vars(sets)["_words"] = np.array([1, 4, 2, 3, 9, 9, 9], np.uint64)
    assert (sets.find(("a", "b")), sets.find(("c", "d")), sets.find(("b",))) == ([0], [1], [])


@pytest.mark.parametrize("edit", ["descending", "unknown", "twice", "short", "long", "backwards"])
def test_inconsistent_columns_are_detected(edit):
    sets = AttributeSets.of(NAMES, [("a", "b", "c"), (), ("d",), ("a", "g")])
    assert is_consistent(sets, len(NAMES))
    members, ends = sets.members.copy(), sets.ends.copy()
    if edit == "descending":
        members[:2] = 1, 0
    elif edit in ("unknown", "twice"):
        members[1] = 99 if edit == "unknown" else 0
    elif edit == "backwards":
        ends[1] = 2
    else:
        ends[-1] += 1 if edit == "long" else -1
    assert not is_consistent(AttributeSets(NAMES, members, ends), len(NAMES))


def make_blocks(domain, sets, make=center_factor, shares=None):
    share = np.full(len(sets), 0.9 / len(sets)) if shares is None else shares
    return [
        Block(names, tuple(map(make, domain.shape(names))), float(own)) for names, own in zip(sets, share, strict=True)
    ]


def test_blocks_behave_like_list_of_blocks():
    domain, given = Domain({name: 2 + i % 3 for i, name in enumerate(NAMES)}), shuffle_sets()
    listed = make_blocks(domain, given, identity_factor, np.random.default_rng(0).uniform(0, 0.01, len(given)))
    blocks = Blocks.of(domain.names, iter(listed))
    assert len(blocks.strategies) < len(blocks)
    assert blocks.rows.tolist() == [np.prod(one.rows, dtype=int) for one in listed]
    assert blocks.unit_variances.tolist() == [one.unit_variance for one in listed]
    for one, other in zip(blocks, listed, strict=True):
        assert (one.attributes, one.share, one.whole, one.noise) == (other.attributes, other.share, False, "gaussian")
        assert all(mine is theirs for mine, theirs in zip(one.factors, other.factors, strict=True))
        assert one.digest == other.digest
    some = blocks.take(np.array([9, 4]))
    assert [(one.attributes, one.digest, one.share) for one in some] == [
        (listed[i].attributes, listed[i].digest, listed[i].share) for i in (9, 4)
    ]


def test_draws_equal_draws_computed_separately():
    """Draws are computed once for equal blocks; the oracle computes each one alone."""
    from fractions import Fraction

    domain = Domain({name: 2 + i % 3 for i, name in enumerate(NAMES)})
    built = plan(Workload(domain).add("marginal", degree=2).add("prefix", degree=1), mechanism="residual-planner")
    draws = plan_draws(built, 0.3, 2)
    assert len(draws.kinds) < len(draws)
    assert list(draws) == [draw_of(block, Fraction(0.3), 2) for block in built.blocks]
    assert draws.cost.gaussian <= Fraction(0.3)
    assert sum(draw.cost for draw in draws) <= draws.cost.gaussian


def test_batched_labels_are_canonical():
    """Labels identify values; noise is keyed by the record."""
    domain = Domain({'a"b': 3, "ü": 2, "c,d": 4})
    built = plan(Workload(domain).add("marginal", degree=2), mechanism="residual-planner")
    requests = BlockRequests(built.blocks, plan_draws(built, 1.0), built.sources)
    for index, order in enumerate(requests):
        assert requests.text(index) == canonical(order.label).decode()


def test_sources_are_smallest_counted_sets_among_largest():
    domain, given = Domain({name: 2 + i for i, name in enumerate(NAMES)}), shuffle_sets(1, 30)
    counted = count_sources(domain, AttributeSets.of(NAMES, given))
    largest = [names for names in given if not any(set(names) < set(other) for other in given)]
    assert sorted(counted.sets) == sorted(largest)
    for names, source in zip(given, counted.source, strict=True):
        supersets = [one for one in largest if set(names) <= set(one)]
        assert counted.sets[int(source)] in supersets
        assert domain.cells(counted.sets[int(source)]) == min(map(domain.cells, supersets))


def test_plan_round_trips_and_edited_columns_are_refused(tmp_path):
    domain = Domain({"a": 3, "b": 4, "c": 2})
    workload = Workload(domain).add("marginal", degree=2)
    built = plan(workload, mechanism="residual-planner")
    write_plan(tmp_path, built)
    back = read_plan(tmp_path, workload)
    assert back.blocks.digest == built.blocks.digest
    assert back.counted_sets == built.counted_sets
    with np.load(tmp_path / "blocks.npz") as file:
        columns = dict(file)
    np.savez(tmp_path / "blocks.npz", **(columns | {"share": columns["share"][::-1]}))
    with refused(JobError):
        read_plan(tmp_path, workload)
    np.savez(tmp_path / "blocks.npz", **(columns | {"source": columns["source"] + 90}))
    with refused(JobError):
        read_plan(tmp_path, workload)
    (tmp_path / "blocks.npz").write_bytes(b"PK")
    with refused(JobError):
        read_plan(tmp_path, workload)
    assert json.loads((tmp_path / "plan.json").read_text())["blocks"]["count"] == len(built.blocks)
