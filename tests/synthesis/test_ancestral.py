"""Ancestral sampling along a junction tree: conditional shares are met up to rounding, by integer arithmetic."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dpscale.reconstruction.junction_tree import GraphicalModel
from dpscale.synthesis.ancestral import ancestral_sampler, read_ancestral, write_ancestral
from dpscale.synthesis.draw import RowPart
from dpscale.workload.residual import Groups, every_cell
from tests.reconstruction.explicit import SHAPES, SIZES

NAMES = tuple(SIZES)


def make_model(sets: list[tuple[str, ...]], seed: int = 0, groups: dict[str, Groups] | None = None) -> GraphicalModel:
    """Return a model with random potentials over some sets."""
    rng = np.random.default_rng(seed)
    groups = {name: every_cell(size) for name, size in SIZES.items()} | (groups or {})
    factors = {names: rng.normal(0, 1.5, [groups[name].count for name in names]) for names in sets if len(names) > 1}
    cells = {name: rng.normal(0, 1, size) for name, size in SIZES.items()}
    return GraphicalModel(groups, factors, cells, 1000.0)


def cell_shares(rows: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return the share of every cell over some attributes, by brute force."""
    found = np.zeros([SIZES[name] for name in names])
    np.add.at(found, tuple(rows[:, NAMES.index(name)] for name in names), 1 / len(rows))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_low_order_marginals_equal_model(shape: str) -> None:
    """With 200,000 rows; independent draws would have an error of √(cells / rows) = 0.008 to 0.02."""
    fitted = make_model(SHAPES[shape])
    rows = ancestral_sampler(fitted).rows(RowPart(200_000, 1, 0), "release")
    for names in (subset for degree in (1, 2, 3) for subset in combinations(NAMES, degree)):
        wanted = fitted.marginal(names) / fitted.total
        inside = any(set(names) <= set(clique) for clique in fitted.tree.cliques)
        assert np.abs(cell_shares(rows, names) - wanted).sum() < (0.0015 if inside else 0.012), names


def test_counts_of_root_clique_are_rounded_model_counts() -> None:
    fitted = make_model([("a", "b", "c")])
    rows = ancestral_sampler(fitted).rows(RowPart(1000, 1, 0), "release")
    root = fitted.tree.cliques[0]
    counts = cell_shares(rows, root) * 1000
    assert np.abs(counts - 1000 * fitted.marginal(root) / fitted.total).max() < 1 + 1e-6


def test_rounding_of_small_groups_is_unbiased() -> None:
    """Each value of c has few rows: rounding in one direction would change b's share by tens of percents."""
    fitted = make_model(SHAPES["a chain"], seed=3)
    found = [cell_shares(ancestral_sampler(fitted).rows(RowPart(12, 1, 0), f"release {n}"), ("b",)) for n in range(400)]
    assert np.mean(found, axis=0) == pytest.approx(fitted.marginal(["b"]) / fitted.total, abs=0.02)


def test_cells_within_groups_follow_model() -> None:
    fitted = make_model(SHAPES["a square"], groups={"c": Groups(4, (0, 3)), "e": Groups(3, (0, 1))})
    rows = ancestral_sampler(fitted).rows(RowPart(100_000, 1, 0), "release")
    for names in combinations(NAMES, 2):
        assert np.abs(cell_shares(rows, names) - fitted.marginal(names) / fitted.total).sum() < 0.012


def test_impossible_values_are_never_drawn() -> None:
    fitted = make_model(SHAPES["a chain"])
    fitted.factors["a", "b"][1, 0] = fitted.factors["b", "c"][1, 2] = -1e4
    rows = ancestral_sampler(fitted).rows(RowPart(50_000, 1, 0), "release")
    assert cell_shares(rows, ("a", "b"))[1, 0] == cell_shares(rows, ("b", "c"))[1, 2] == 0


def test_part_depends_on_its_number_and_file_only(tmp_path: Path) -> None:
    drawing = ancestral_sampler(make_model(SHAPES["two circles"], groups={"c": Groups(4, (0, 3))}))
    write_ancestral(tmp_path / "ancestral.npz", drawing)
    read = read_ancestral(tmp_path / "ancestral.npz")
    part = RowPart(900, 3, 1)
    assert (read.rows(part, "r") == drawing.rows(part, "r")).all()
    assert (drawing.rows(part, "r") != drawing.rows(RowPart(900, 3, 2), "r")).any()
    assert (drawing.rows(part, "r") != drawing.rows(part, "s")).any()
    assert (read.names, read.total, read.matched_pairs) == (NAMES, 1000.0, 10)


def test_rounding_differences_change_no_row() -> None:
    one, other = make_model(SHAPES["two circles"]), make_model(SHAPES["two circles"])
    for table in other.factors.values():
        table *= 1 + 1e-15
    part = RowPart(5000, 1, 0)
    assert (ancestral_sampler(one).rows(part, "r") == ancestral_sampler(other).rows(part, "r")).all()


def test_parts_of_zero_and_one_row() -> None:
    drawing = ancestral_sampler(make_model(SHAPES["apart"]))
    assert [len(drawing.rows(RowPart(1, 3, number), "r")) for number in range(3)] == [0, 0, 1]
