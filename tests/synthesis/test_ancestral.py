"""Rows along a junction tree: conditionals met as nearly as whole rows can, by steps that are whole."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dpscale.reconstruction.junction_tree.model import GraphicalModel
from dpscale.synthesis.ancestral import ancestral_sampler, read_ancestral, write_ancestral
from dpscale.synthesis.draw import RowPart
from dpscale.workload.residual.in_axis import Groups, every_cell
from tests.reconstruction.explicit import SHAPES, SIZES

NAMES = tuple(SIZES)


def model(sets: list[tuple[str, ...]], seed: int = 0, groups: dict[str, Groups] | None = None) -> GraphicalModel:
    """Random potentials over some sets."""
    rng = np.random.default_rng(seed)
    groups = {name: every_cell(size) for name, size in SIZES.items()} | (groups or {})
    factors = {names: rng.normal(0, 1.5, [groups[name].count for name in names]) for names in sets if len(names) > 1}
    cells = {name: rng.normal(0, 1, size) for name, size in SIZES.items()}
    return GraphicalModel(groups, factors, cells, 1000.0)


def shares(rows: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Of every cell over some attributes, by brute force."""
    found = np.zeros([SIZES[name] for name in names])
    np.add.at(found, tuple(rows[:, NAMES.index(name)] for name in names), 1 / len(rows))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_every_low_order_marginal_is_the_models(shape: str) -> None:
    """200,000 rows: drawing them independently would leave about √(cells / rows) = 0.008 to 0.02."""
    fitted = model(SHAPES[shape])
    rows = ancestral_sampler(fitted).rows(RowPart(200_000, 1, 0), "release")
    for names in (kept for degree in (1, 2, 3) for kept in combinations(NAMES, degree)):
        wanted = fitted.marginal(names) / fitted.total
        inside = any(set(names) <= set(clique) for clique in fitted.tree.cliques)
        assert np.abs(shares(rows, names) - wanted).sum() < (0.0015 if inside else 0.012), names


def test_in_the_first_clique_counts_are_the_models_rounded() -> None:
    fitted = model([("a", "b", "c")])
    rows = ancestral_sampler(fitted).rows(RowPart(1000, 1, 0), "release")
    root = fitted.tree.cliques[0]
    counts = shares(rows, root) * 1000
    assert np.abs(counts - 1000 * fitted.marginal(root) / fitted.total).max() < 1 + 1e-6


def test_many_small_groups_together_meet_the_share() -> None:
    """Each value of c comes with few rows: roundings all one way would move b's share by tens of percents."""
    fitted = model(SHAPES["a chain"], seed=3)
    found = [shares(ancestral_sampler(fitted).rows(RowPart(12, 1, 0), f"release {n}"), ("b",)) for n in range(400)]
    assert np.mean(found, axis=0) == pytest.approx(fitted.marginal(["b"]) / fitted.total, abs=0.02)


def test_cells_inside_groups_share_as_the_model_says() -> None:
    fitted = model(SHAPES["a square"], groups={"c": Groups(4, (0, 3)), "e": Groups(3, (0, 1))})
    rows = ancestral_sampler(fitted).rows(RowPart(100_000, 1, 0), "release")
    for names in combinations(NAMES, 2):
        assert np.abs(shares(rows, names) - fitted.marginal(names) / fitted.total).sum() < 0.012


def test_values_that_cannot_be_are_never_drawn() -> None:
    fitted = model(SHAPES["a chain"])
    fitted.factors["a", "b"][1, 0] = fitted.factors["b", "c"][1, 2] = -1e4
    rows = ancestral_sampler(fitted).rows(RowPart(50_000, 1, 0), "release")
    assert shares(rows, ("a", "b"))[1, 0] == shares(rows, ("b", "c"))[1, 2] == 0


def test_parts_follow_from_their_numbers_and_the_file_alone(tmp_path: Path) -> None:
    drawing = ancestral_sampler(model(SHAPES["two circles"], groups={"c": Groups(4, (0, 3))}))
    write_ancestral(tmp_path / "ancestral.npz", drawing)
    read = read_ancestral(tmp_path / "ancestral.npz")
    part = RowPart(900, 3, 1)
    assert (read.rows(part, "r") == drawing.rows(part, "r")).all()
    assert (drawing.rows(part, "r") != drawing.rows(RowPart(900, 3, 2), "r")).any()
    assert (drawing.rows(part, "r") != drawing.rows(part, "s")).any()
    assert (read.names, read.total, read.matched_pairs) == (NAMES, 1000.0, 10)


def test_last_bits_of_another_machine_move_no_row() -> None:
    one, other = model(SHAPES["two circles"]), model(SHAPES["two circles"])
    for table in other.factors.values():
        table *= 1 + 1e-15
    part = RowPart(5000, 1, 0)
    assert (ancestral_sampler(one).rows(part, "r") == ancestral_sampler(other).rows(part, "r")).all()


def test_no_rows_and_one() -> None:
    drawing = ancestral_sampler(model(SHAPES["apart"]))
    assert [len(drawing.rows(RowPart(1, 3, number), "r")) for number in range(3)] == [0, 0, 1]
