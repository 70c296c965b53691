"""Limb arithmetic, against Python integers, and rounding to the nearest double, against float(int)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from dpscale.counting import ExactMarginal
from dpscale.measurement import measure_block, measurement as block_module, wide
from dpscale.measurement.wide import digits, limb_bits, limb_count, limb_product, nearest_float, noisy_floats
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor, center_factor, identity_factor
from dpscale.plans.layered import LayeredFactor
from dpscale.plans.nested import NestedFactor
from dpscale.plans.spectral import spectral_factor
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.noise import wide_gaussian
from dpscale.privacy.streams import open_stream, seeded_secret
from dpscale.workload import wide as axes

SECRET = seeded_secret(1)
Case = tuple[tuple[Factor, ...], np.ndarray]


def random_factor(cells: int, rows: int, largest: int, seed: int) -> Factor:
    """Return a factor with entries of all sizes up to `largest`, including ±`largest`."""
    rng = np.random.default_rng(seed)
    entries = rng.integers(-largest, largest + 1, (rows, cells)) >> rng.integers(0, 9, (rows, cells))
    entries.flat[0], entries.flat[-1] = largest, -largest
    return Factor("matrix", (cells,), entries)


@st.composite
def factors(draw: st.DrawFn, most_bits: int = 37) -> Factor:
    cells = draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["matrix", "matrix", "center", "identity"]))
    if kind != "matrix":
        return Factor(kind, (cells,))
    largest = draw(st.sampled_from([2**26 - 1, 2**26, 2**25 + 1]) | st.integers(1, 2**most_bits))
    return random_factor(cells, draw(st.integers(1, 9)), largest, draw(st.integers(0, 2**32)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chosen = tuple(draw(st.lists(factors(), max_size=4)))
    shape = tuple(factor.cells for factor in chosen)
    largest = draw(st.sampled_from([0, 1, 10**3, 2**32, 2**45]))
    least = draw(st.sampled_from([0, 0, -largest, -(largest // 7)]))  # parts of bounded totals may be negative
    return chosen, np.random.default_rng(draw(st.integers(0, 99))).integers(least, largest + 1, shape)


def python_product(chosen: tuple[Factor, ...], counts: np.ndarray) -> list[int]:
    values = np.asarray(counts).astype(object)
    for axis, factor in enumerate(chosen):
        values = np.moveaxis(np.tensordot(factor.explicit().astype(object), values, axes=(1, axis)), 0, axis)
    return [int(value) for value in np.asarray(values, dtype=object).reshape(-1)]


def join_limbs(limbs: np.ndarray, bits: int) -> list[int]:
    return [sum(int(limb) << (bits * place) for place, limb in enumerate(cell)) for cell in limbs.T]


# ---- the product -----------------------------------------------------------------------------------------------------


@given(cases())
@settings(max_examples=150, deadline=None)
def test_limb_product_equals_python_product(case: Case) -> None:
    chosen, counts = case
    limbs, bits = limb_product(chosen, counts)
    assert join_limbs(limbs, bits) == python_product(chosen, counts)
    assert limbs[:-1].min(initial=0) >= 0
    assert limbs[:-1].max(initial=0) < 2**bits
    assert np.abs(limbs[-1].astype(int)).max() <= 2**bits


@given(cases(), st.sampled_from(wide.WIDTHS), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_limb_width_and_chunk_do_not_change_product(case: Case, bits: int, chunk: int) -> None:
    chosen, counts = case
    if any(wide.digit_count(factor, bits) == math.inf for factor in chosen):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "WIDTHS", [bits])
        patch.setattr(wide, "CHUNK", chunk)
        limbs, used = limb_product(chosen, counts)
    assert used == bits
    assert join_limbs(limbs, bits) == python_product(chosen, counts)


@pytest.mark.parametrize("largest", [2**24, 2**26, 2**36, 2**50])
def test_limb_product_of_extreme_entries(largest: int) -> None:
    """All entries and counts have the largest value and one sign: no partial sum can be larger."""
    for sign in (1, -1):
        chosen = tuple(Factor("matrix", (40,), np.full((2, 40), sign * largest)) for _ in range(2))
        counts = np.full((40, 40), 2**32 + 1)
        limbs, bits = limb_product(chosen, counts)
        assert set(join_limbs(limbs, bits)) == {largest**2 * 1600 * (2**32 + 1)}


def test_planted_too_wide_limb_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle of the previous tests must detect a limb that is a few bits too wide."""
    chosen = tuple(random_factor(40, 40, 2**26, seed) for seed in range(3))
    counts = np.random.default_rng(3).integers(0, 2**32, (40, 40, 40))
    limbs, bits = limb_product(chosen, counts)
    exact = join_limbs(limbs, bits)[:50]
    assert exact == python_product((Factor("matrix", (40,), chosen[0].explicit()[:1]), *chosen[1:]), counts)[:50]
    monkeypatch.setattr(wide, "WIDTHS", [30])
    monkeypatch.setattr(wide, "EXACT", 1 << 62)
    limbs, bits = limb_product(chosen, counts)
    assert join_limbs(limbs, bits)[:50] != exact


def test_entry_with_more_digits_than_result_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one count of 1 and an entry of 20 bits, one limb suffices for the result but not for those digits."""
    monkeypatch.setattr(wide, "WIDTHS", [20])
    factor, counts = Factor("matrix", (10_000,), np.full((1, 10_000), 2**20 - 1)), np.zeros(10_000, dtype=np.int64)
    counts[7] = 1
    assert wide.digit_count(factor, 20) == 2
    assert join_limbs(*limb_product((factor,), counts)) == [2**20 - 1]


def test_limb_product_of_joint_factor_and_total() -> None:
    joint = Factor("matrix", (5, 6, 4), random_factor(120, 30, 2**26, 0).explicit())
    counts = np.random.default_rng(0).integers(0, 2**32, (5, 6, 4))
    limbs, bits = limb_product((joint,), counts)
    assert join_limbs(limbs, bits) == python_product((joint,), counts.reshape(-1))
    limbs, bits = limb_product((), np.array(2**61 + 5))
    assert join_limbs(limbs, bits) == [2**61 + 5]


@given(st.integers(1, 2**55), st.sampled_from(wide.WIDTHS), st.integers(0, 99))
@settings(max_examples=300)
def test_digits_are_bounded_and_recompose_matrix(largest: int, bits: int, seed: int) -> None:
    matrix = random_factor(5, 4, largest, seed).explicit()
    number = -(-(largest.bit_length() + 1) // bits)
    parts = digits(matrix, bits, number)
    total = sum(part.astype(np.int64).astype(object) << (bits * i) for i, part in enumerate(parts))
    assert np.array_equal(total, matrix)
    assert all(np.abs(part).max() <= 2 ** (bits - 1) + 1 for part in parts)


def test_limb_width_prevents_overflow_and_saves_products() -> None:
    fine = tuple(random_factor(40, 40, 2**24, seed) for seed in range(3))
    bits = limb_bits(fine, 10**6)
    assert all(factor.largest_row_sum << bits <= 2**53 for factor in fine)
    assert [limb_count(10**6 << (24 * i), bits) for i in range(4)] == [1, 2, 3, 4]
    assert limb_bits((center_factor(9), identity_factor(4)), 10**6) == 30


# ---- the rounding ----------------------------------------------------------------------------------------------------


def round_wide(value: int) -> float:
    return float(nearest_float(np.uint64(value >> 64 & 2**64 - 1), np.uint64(value & 2**64 - 1)))


@given(st.integers(-(2**126), 2**126), st.integers(0, 126))
@example(0, 0)
@example(2**126, 0)
@example(-(2**126), 0)
def test_nearest_float_equals_python(value: int, shift: int) -> None:
    assert round_wide(value >> shift) == float(value >> shift)


@given(st.integers(2**52, 2**53 - 1), st.integers(0, 73), st.sampled_from([-1, 0, 1]), st.booleans())
def test_nearest_float_rounds_ties_correctly(mantissa: int, zeros: int, beside: int, negative: bool) -> None:
    value = ((2 * mantissa + 1) << zeros) + beside
    value = -value if negative else value
    assert round_wide(value) == float(value)


def test_nearest_float_of_zero_is_positive() -> None:
    assert math.copysign(1, round_wide(0)) == 1


numbers = st.integers(-(2**125), 2**125) | st.integers(-(2**60), 2**60)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9), st.sampled_from(wide.WIDTHS))
def test_noisy_floats_add_limbs_and_noise_exactly(pairs: list[tuple[int, int]], bits: int) -> None:
    """Sums that nearly cancel are included: the second number is also minus the first plus a few units."""
    pairs = pairs + [(a, -a + b % 7 - 3) for a, b in pairs]
    count = limb_count(2**125, bits)
    lower = [[a >> (bits * k) & (1 << bits) - 1 for a, _ in pairs] for k in range(count - 1)]
    limbs = np.array([*lower, [a >> (bits * (count - 1)) for a, _ in pairs]], dtype=np.int32)
    high = np.array([b >> 64 for _, b in pairs], dtype=np.int64)
    low = np.array([b & 2**64 - 1 for _, b in pairs], dtype=np.uint64)
    out = np.empty(len(pairs))
    noisy_floats(limbs, np.uint64(bits), high, low, out)
    assert out.tolist() == [float(a + b) for a, b in pairs]


# ---- whole blocks ----------------------------------------------------------------------------------------------------


def expected_values(block: Block, draw: GaussianDraw, counts: np.ndarray) -> np.ndarray:
    size = math.prod(block.rows)
    high, low = wide_gaussian(open_stream(SECRET, "noise", {}), draw.variance, size)
    exact = python_product(block.factors, counts.reshape(-1) if block.joint else counts)
    noisy = zip(exact, high, low, strict=True)
    return np.array([float(v * draw.multiplier + int(h) * 2**64 + int(lo)) for v, h, lo in noisy]).reshape(block.rows)


@given(cases(), st.sampled_from([1, 2**10, 3**9]), st.integers(24, 200))
@settings(max_examples=150, deadline=None)
def test_measured_values_equal_python(case: Case, multiplier: int, bits: int) -> None:
    chosen, counts = case
    names = tuple(f"a{i}" for i in range(len(chosen)))
    block, draw = Block(names, chosen, 1.0), GaussianDraw(multiplier, (1 << bits) - 3, Fraction(1))
    values = measure_block(block, draw, ExactMarginal(names, counts), SECRET, {})
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, expected_values(block, draw, counts))


@given(cases(), st.integers(24, 100))
@settings(max_examples=60, deadline=None)
def test_arithmetic_paths_give_same_bytes(case: Case, bits: int) -> None:
    """The paths are 64-bit integers, limbs, and Python integers."""
    chosen, counts = case
    names = tuple(f"a{i}" for i in range(len(chosen)))
    block, draw, marginal = (
        Block(names, chosen, 1.0),
        GaussianDraw(4, 1 << bits, Fraction(1)),
        ExactMarginal(names, counts),
    )
    ways = [measure_block(block, draw, marginal, SECRET, {}).tobytes()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_module, "LARGE", 0)
        ways.append(measure_block(block, draw, marginal, SECRET, {}).tobytes())
        patch.setattr(block_module, "MOST_WIDE", 0)
        ways.append(measure_block(block, draw, marginal, SECRET, {}).tobytes())
    assert len(set(ways)) == 1


def test_fine_strategy_on_large_table_is_exact() -> None:
    """Three axes at 24 bits a factor, and noise as large as the sensitivity."""
    chosen = tuple(random_factor(12, 12, 2**26, seed) for seed in range(3))
    block = Block(("a", "b", "c"), chosen, 1.0)
    counts = np.random.default_rng(0).integers(0, 2**32, (12, 12, 12))
    draw = GaussianDraw(1, block.squared_l2_sensitivity, Fraction(1))
    assert 2**155 < draw.variance < 2**172
    values = measure_block(block, draw, ExactMarginal(block.attributes, counts), SECRET, {})
    np.testing.assert_array_equal(values, expected_values(block, draw, counts))


@pytest.mark.parametrize("largest", [10, 2**30, 2**45])
def test_two_level_strategy_in_limbs_is_exact(largest, monkeypatch):
    monkeypatch.setattr(axes, "BLOCKS", 4)
    axes.runs_of.cache_clear()
    runs = axes.runs_of(22)
    top = random_factor(sum(run.count for run in runs), 3, 2**36, 1)
    inner = tuple(random_factor(run.size, 2, 2**20, run.size) for run in runs)
    chosen = (NestedFactor("nested", (22,), top=top, inner=inner), random_factor(3, 2, 2**10, 5))
    counts = np.random.default_rng(2).integers(0, largest, (22, 3))
    limbs, bits = limb_product(chosen, counts)
    axes.runs_of.cache_clear()
    assert join_limbs(limbs, bits) == python_product(chosen, counts)


def layered_factor(cells: int) -> LayeredFactor:
    """Return a strategy of random integers on blocks of 8 cells."""
    rng, blocks = np.random.default_rng(4), -(-cells // 8)
    top, multipliers = rng.integers(0, 2**20, (3, blocks)), rng.integers(1, 2**22, (3, blocks))
    return LayeredFactor("layered", (cells,), top=top, multipliers=multipliers, widths=(8, 2, 1))


@pytest.mark.parametrize("make", [spectral_factor, layered_factor])
@pytest.mark.parametrize("largest", [10, 2**30, 2**45])
def test_implicit_strategy_in_limbs_is_exact(make, largest):
    chosen = (make(50), random_factor(3, 2, 2**10, 5))
    counts = np.random.default_rng(2).integers(0, largest, (50, 3))
    limbs, bits = limb_product(chosen, counts)
    assert join_limbs(limbs, bits) == python_product(chosen, counts)


@pytest.mark.parametrize("make", [spectral_factor, layered_factor])
@pytest.mark.parametrize("largest", [3, 2**40])
def test_implicit_measurement_is_exact_in_words_limbs_and_unbounded(make, largest, monkeypatch):
    block = Block(("a",), (make(40),), 1.0)
    counts = np.random.default_rng(3).integers(0, largest, 40)
    draw = GaussianDraw(1, block.squared_l2_sensitivity, Fraction(1))
    values = measure_block(block, draw, ExactMarginal(block.attributes, counts), SECRET, {})
    np.testing.assert_array_equal(values, expected_values(block, draw, counts))
    monkeypatch.setattr(block_module, "MOST_WIDE", 0)
    monkeypatch.setattr(block_module, "LARGE", 0)
    again = measure_block(block, draw, ExactMarginal(block.attributes, counts), SECRET, {})
    np.testing.assert_array_equal(again, values)
