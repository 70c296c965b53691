"""Counting by covers, joint counters, bit planes and direct counters against np.add.at, bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.counting import count, cover, cover as program, kernels
from dpscale.counting.count import Counter
from dpscale.counting.cover import DIRECT, PLANES, Cover, Program, grow, guess_rows, plan_cover
from dpscale.records.encode import code_type

SIZES = st.one_of(st.integers(2, 5), st.integers(2, 40), st.sampled_from([255, 256, 257, 1000, 10_000]))
CELLS = 200_000
FEW = cover.FEW


@pytest.fixture(autouse=True, scope="module")
def loops():
    """Count few rows by covers and compiled loops too."""
    with mock.patch.object(cover, "FEW", 0), mock.patch.object(program, "FEW", 0):
        yield


def count_naively(domain, codes, names):
    """Return one marginal by np.add.at."""
    counts = np.zeros(domain.shape(names), dtype=np.int64)
    np.add.at(counts, tuple(codes[domain.names.index(name)] for name in names), 1)
    if not names:
        counts[...] = codes.shape[1]
    return counts.ravel()


def expected_counts(domain, codes, sets):
    return np.concatenate([count_naively(domain, codes, names) for names in sets] or [np.zeros(0, np.int64)])


def count_with_cover(made, codes, ends=()):
    """Count by a cover, with the rows passed in pieces."""
    compiled = Program.of(made)
    used = [made.domain.names.index(name) for name in compiled.names]
    counting = Counter(compiled)
    for piece in np.split(codes, ends, axis=1):
        counting.add(piece[used])
    return counting.finish()


def random_codes(domain, rows, seed):
    """Return skewed codes of every attribute, in the type that the largest one needs."""
    random = np.random.default_rng(seed)
    sizes = [attribute.size for attribute in domain.attributes]
    skewed = [np.minimum(random.integers(0, size, rows), random.integers(0, size, rows)) for size in sizes]
    return np.stack(skewed).astype(code_type(max(sizes)))


@st.composite
def domains_with_sets(draw):
    """Draw a domain and distinct ordered sets of it that are small enough to count naively."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=7))
    domain = dp.Domain({f"a{i}": size for i, size in enumerate(sizes)})
    every = [names for k in range(5) for names in combinations(domain.names, k) if domain.cells(names) <= CELLS]
    sets = draw(st.lists(st.sampled_from(every), unique=True, max_size=25)) if every else []
    return domain, sets


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_cover_gives_naive_counts(data):
    domain, sets = data.draw(domains_with_sets())
    rows = data.draw(st.sampled_from([0, 1, 63, 64, 65, 1000, 5000]))
    codes = random_codes(domain, rows, data.draw(st.integers(0, 99)))
    guess, spare = data.draw(st.sampled_from([1, 1000, 10**6, 10**9])), data.draw(st.sampled_from([None, 0, 500]))
    few = data.draw(st.sampled_from([0, 2000, FEW]))  # NumPy counts the first of the rows, or all
    ends = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))
    with mock.patch.object(cover, "FEW", few), mock.patch.object(program, "FEW", few):
        made = plan_cover(domain, sets, guess, spare)
        assert np.array_equal(count_with_cover(made, codes, ends), expected_counts(domain, codes, sets))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_owner_of_a_set_gives_exact_counts(data):
    """Covers that no cost model would choose: each set is counted by any possible method."""
    domain, sets = data.draw(domains_with_sets())
    used = domain.ordered({name for names in sets for name in names})
    joints = [names for k in (1, 3) for names in combinations(used, k) if domain.cells(names) <= CELLS]
    owners = []
    for names in sets:
        ways = [DIRECT, *(j for j, joint in enumerate(joints) if set(names) <= set(joint))]
        small = names and max(domain.shape(names)) <= 256 and domain.cells(names) <= 5000
        owners.append(data.draw(st.sampled_from([*ways, *([PLANES] if small else [])])))
    made = Cover(domain, tuple(sets), tuple(joints), np.array(owners, dtype=np.int64))
    codes = random_codes(domain, 700, data.draw(st.integers(0, 99)))
    assert np.array_equal(count_with_cover(made, codes), expected_counts(domain, codes, sets))


@pytest.mark.parametrize(
    "block",
    [1, 7, kernels.SLICE - 1, kernels.SLICE, kernels.SLICE + 1, 3 * kernels.SLICE + 5],
)
@pytest.mark.parametrize("sizes", [[3, 4, 5, 2, 9], [30, 40, 50, 20], [300, 70, 3, 2]])
def test_block_and_batch_lengths_do_not_matter(block, sizes, monkeypatch):
    domain = dp.Domain({f"a{i}": size for i, size in enumerate(sizes)})
    sets = list(combinations(domain.names, 3)) + list(combinations(domain.names, 2))
    codes = random_codes(domain, 2 * kernels.SLICE + 77 if block > 100 else 300, block)
    want = expected_counts(domain, codes, sets)
    for name in ("NARROW_BLOCK", "WIDE_BLOCK"):
        monkeypatch.setattr(program, name, block)
    monkeypatch.setattr(count, "GATHER_ROWS", block)
    for guess in (1000, 10**9):
        made = plan_cover(domain, sets, guess)
        assert np.array_equal(count_with_cover(made, codes, range(0, codes.shape[1], 999)), want)
    direct = replace(made, joints=(), owners=np.full(len(sets), DIRECT))
    assert np.array_equal(count_with_cover(direct, codes), want)


def test_many_rows_with_direct_counter():
    domain = dp.Domain({"a": 40, "b": 50, "c": 3})
    codes = random_codes(domain, 70_000, 1)
    made = Cover(domain, (("a", "b", "c"),), (), np.array([DIRECT]))
    assert np.array_equal(count_with_cover(made, codes), expected_counts(domain, codes, [("a", "b", "c")]))


def test_joint_codes_beyond_32_bits_use_int64():
    domain = dp.Domain({"a": 1 << 17, "b": 1 << 17})
    (steps,) = Program.of(Cover(domain, (("a", "b"),), (), np.array([DIRECT]))).direct
    assert steps.code == "int64"


def test_direct_counters_exceed_32_bits():
    """Direct counters continue beyond 2³²; narrow ones are flushed before."""
    domain = dp.Domain({"a": 3, "b": 2})
    codes = np.full((2, 10), 1, dtype=np.uint8)
    made = Cover(domain, (("a", "b"), ()), (), np.array([DIRECT, DIRECT]))
    counting = Counter(Program.of(made))
    counting._flat[:] = (1 << 32) - 2
    counting.add(codes)
    assert counting.finish().tolist() == [(1 << 32) - 2 + 10 * (cell in (3, 6)) for cell in range(7)]


def test_narrow_counters_are_flushed_before_overflow(monkeypatch):
    """A thousand rows stand for 2³²: flushed at least every hundred rows, the counters never exceed 100."""
    monkeypatch.setattr(count, "FLUSH_ROWS", 100)
    monkeypatch.setattr(count, "GATHER_ROWS", 1)
    domain = dp.Domain({"a": 3, "b": 2})
    made = Cover(domain, (("a",), ("b",)), (("a", "b"),), np.array([0, 0]))
    counting = Counter(Program.of(made))
    for _ in range(100):
        counting.add(np.ones((2, 10), dtype=np.uint8))
        assert counting._joint.sum() <= 100
    assert counting.finish().tolist() == [0, 1000, 0, 0, 1000]
    assert 1 << 31 <= 2**32 - 1 - (1 << 18), "the real limit leaves room for a batch"


def test_narrow_counters_near_limit_are_summed_exactly():
    """The sum of a full narrow counter is right beyond 31 bits, also for rows added after its flush."""
    domain = dp.Domain({"a": 3, "b": 2})
    made = Cover(domain, (("a",), ("b",)), (("a", "b"),), np.array([0, 0]))
    counting, full = Counter(Program.of(made)), (1 << 32) - 1
    counting._joint[:] = full
    counting._narrow_rows = count.FLUSH_ROWS
    counting.add(np.ones((2, 10), dtype=np.uint8))
    assert counting.finish().tolist() == [2 * full, 2 * full + 10, 2 * full, 3 * full, 3 * full + 10]


# The oracle sees planted faults


def plant_fault(monkeypatch, name):
    if name == "no flush":
        monkeypatch.setattr(kernels, "fold", lambda *_: None)
    elif name == "a shared prefix too long":
        monkeypatch.setattr(Program, "of", lambda cover: lengthen_shared_prefix(_of(cover)))
    elif name == "padding counted":
        monkeypatch.setattr(kernels, "assemble", lambda rows, *rest: _assemble(rows + 1, *rest))
    elif name == "a batch lost":
        monkeypatch.setattr(kernels, "count_planes", lambda *_: None)


_assemble, _of = kernels.assemble, Program.of


def lengthen_shared_prefix(made):
    """Plant a fault: each set shares more columns with its predecessor than it does."""
    return replace(made, joints=tuple(replace(one, shared=np.minimum(one.shared * 2, 2)) for one in made.joints))


@pytest.mark.parametrize("name", ["", "no flush", "a shared prefix too long", "padding counted", "a batch lost"])
def test_oracle_detects_planted_faults(name, monkeypatch):
    plant_fault(monkeypatch, name)
    domain = dp.Domain({f"a{i}": size for i, size in enumerate([2, 3, 4, 5, 6])})
    sets = list(combinations(domain.names, 2))
    joints = (("a0", "a1", "a2"), ("a0", "a3", "a4"))
    owners = [next((j for j, joint in enumerate(joints) if set(names) <= set(joint)), PLANES) for names in sets]
    made = Cover(domain, tuple(sets), joints, np.array(owners))
    codes = random_codes(domain, 1000, 1)
    assert np.array_equal(count_with_cover(made, codes), expected_counts(domain, codes, sets)) == (name == "")


# The choice


def test_few_increments_need_no_cover():
    domain = dp.Domain({f"a{i}": 4 for i in range(6)})
    sets = list(combinations(domain.names, 3))
    with mock.patch.object(cover, "FEW", 20_000):
        assert (plan_cover(domain, sets, 1000).owners == DIRECT).all()
        assert (plan_cover(domain, sets, 1001).owners == PLANES).all()


def test_cover_is_deterministic_and_reports_saving():
    domain = dp.Domain({f"a{i:02d}": 2 + i % 5 for i in range(20)})
    sets = list(combinations(domain.names, 3))
    made = plan_cover(domain, sets)
    for members in (0, 10_000):  # searched by the compiled loop, and by Python
        with mock.patch.object(cover, "FEW_MEMBERS", members):
            again = plan_cover(domain, sets)
        assert made == again
        assert np.array_equal(made.owners, again.owners)
    assert made.saving.asked == 1140
    assert made.saving.factor > 5
    assert made.saving.joints == len(made.joints)


def test_joints_contain_their_sets_and_respect_spare_memory():
    domain = dp.Domain({f"a{i:02d}": [2, 4, 10, 50][i % 4] for i in range(16)})
    sets = [names for k in (1, 2, 3, 4) for names in combinations(domain.names, k) if domain.cells(names) < 10**5]
    for spare in (0, 10_000, 10**6):
        made = plan_cover(domain, sets, 10**7, spare)
        assert sum(domain.cells(joint) for joint in made.joints) <= spare
        for names, owner in zip(sets, made.owners, strict=True):
            assert owner < 0 or set(names) <= set(made.joints[owner])


def test_cover_costs_at_most_counting_set_by_set():
    for sizes in ([2] * 8, [40] * 6, [2, 300, 4, 5, 7], [10_000, 2]):
        domain = dp.Domain({f"a{i}": size for i, size in enumerate(sizes)})
        for k in range(1, min(4, len(sizes))):
            for rows in (1, 1000, 10**8):
                saving = plan_cover(domain, list(combinations(domain.names, k)), rows).saving
                assert saving.covered <= saving.alone * (1 + 1e-9)


def test_small_attributes_share_one_joint():
    domain = dp.Domain({f"a{i}": 4 for i in range(6)})
    made = plan_cover(domain, list(combinations(domain.names, 3)), 10**7)
    assert made.joints == (domain.names,)
    assert not made.owners.any()


def test_two_sets_in_one_joint_cost_less_than_two_joints():
    assert cover.SCATTER[10] < 2 * cover.SCATTER[3]
    assert len(cover.SCATTER) > 63, "any int64 number of cells has a cost"


def test_cover_of_no_sets_and_empty_set():
    domain = dp.Domain({"a": 2})
    assert plan_cover(domain, []).joints == ()
    assert plan_cover(domain, [()]).owners.tolist() == [DIRECT]
    assert callable(grow)


def test_repr_of_counter_contains_no_count():
    domain = dp.Domain({"a": 2})
    counting = Counter(Program.of(plan_cover(domain, [("a",)])))
    counting.add(np.ones((1, 4711), dtype=np.uint8))
    counting._count_waiting()
    assert "4711" not in repr(counting)
    assert "owners" not in repr(plan_cover(domain, [("a",)]))


def test_row_count_is_guessed_from_bytes_and_domain():
    domain = dp.Domain({f"a{i}": 16 for i in range(8)})
    assert guess_rows(domain, 4000) == 1001
    assert math.isfinite(guess_rows(dp.Domain({"a": 1 << 20}), 0))
