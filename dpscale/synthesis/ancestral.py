"""Rows from a junction tree: each clique's attributes given its separator, by systematic rounding.

Among the rows with equal values so far, each new value gets its conditional share, rounded down or up, so within a
clique rows are as near to the model as whole rows can be. If few rows have equal values, their roundings are spread
evenly over [0, 1), so that many small groups together match the share as well. Conditionals are stored as whole steps
of 2^-30, computed on one machine, so the last bits of another machine's exp do not change rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np

from dpscale.base.numerics import Floats, Integers, Integers32
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.junction_tree import GraphicalModel, others
from dpscale.storage.files import reading, writing
from dpscale.synthesis.draw import RowPart

ANCESTRAL = "ancestral.npz"
STEPS = 1 << 30  # whole steps of a probability of 1


@dataclass(frozen=True, eq=False)
class Step:
    """Step of the sampler.

    Attributes
    ----------
    given, new : tuple of int
        Columns.
    shape : tuple of int
        Sizes of the new columns.
    ends : ndarray of int64
        Cumulative shares, increasing, shape (values of given × values of new,).
    """

    given: tuple[int, ...]
    new: tuple[int, ...]
    shape: tuple[int, ...]
    ends: Integers


@dataclass(frozen=True, eq=False)
class AncestralSampler:
    """Sampler of rows from a junction tree; `ones` and `total` as in `RowSampler`.

    Attributes
    ----------
    names : tuple of str
    sizes : tuple of int
        Number of groups of every attribute.
    steps : tuple of Step
        In the order of drawing.
    within : tuple of ndarray
        Cumulative shares of each attribute's cells within their groups.
    ones : dict of str to ndarray
    total : float
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    within: tuple[Integers, ...]
    ones: dict[str, Floats]
    total: float

    @property
    def matched_pairs(self) -> int:
        return comb(len(self.names), 2)

    @property
    def targeted(self) -> tuple[tuple[int, ...], ...]:
        return ()

    def rows(self, part: RowPart, release: str) -> Integers32:
        """Return the part's rows over cells, shape (count, d).

        Each step draws the groups of some attributes given those of earlier ones; last, cells are drawn within the
        groups. `given` numbers the combination of earlier groups, `ends` are cumulated shares in the order of these
        combinations, and `shape` has the number of groups of the new attributes.
        """
        stream = PublicStream(release, "ancestral", *part.key)
        rows = np.zeros((part.count, len(self.names)), np.int32)
        for step in self.steps:
            given = self._codes(rows, step.given)
            drawn = _sample_entries(step.ends, given, stream) - given * int(np.prod(step.shape))
            rows[:, step.new] = np.stack(np.unravel_index(drawn, step.shape), axis=1)

        for column, ends in enumerate(self.within):
            if len(ends) > self.sizes[column]:
                rows[:, column] = _sample_entries(ends, rows[:, column].astype(np.int64), stream)

        return rows

    def _codes(self, rows: Integers32, columns: tuple[int, ...]) -> Integers:
        """Return the number of each row's combination of groups in some columns, row-major, shape (rows,)."""
        codes = np.zeros(len(rows), np.int64)
        for column in columns:
            codes = codes * self.sizes[column] + rows[:, column]
        return codes


def _sample_entries(ends: Integers, given: Integers, stream: PublicStream) -> Integers:
    """Return for each row an entry k with ends[k − 1] ≤ given + point < ends[k], in steps.

    The points of rows with equal `given` are evenly spaced.

    `points` are (rank + offset)/count of the rows with equal `given`, in steps of 1/STEPS, and `ends` continue by STEPS
    from one value of `given` to the next.
    """
    order = stream.permutation(len(given))
    order = order[np.argsort(given[order], kind="stable")]
    _, starts, counts = np.unique(given[order], return_index=True, return_counts=True)
    offsets = (stream.permutation(len(starts)) + stream.uniforms(len(starts))) / max(len(starts), 1)
    ranks = np.arange(len(given)) - np.repeat(starts, counts)
    points = ((ranks + np.repeat(offsets, counts)) / np.repeat(counts, counts) * STEPS).astype(np.int64)
    drawn = np.empty(len(given), np.int64)
    drawn[order] = np.searchsorted(ends, given[order] * STEPS + np.minimum(points, STEPS - 1), side="right")

    return drawn


def ancestral_sampler(model: GraphicalModel) -> AncestralSampler:
    """Return the sampler of a graphical model."""
    names, tree = tuple(model.cells), model.tree
    steps = [
        _step(names, clique, shared, table)
        for clique, shared, table in zip(tree.cliques, tree.separators, model.calibrated.cliques, strict=True)
        if len(shared) < len(clique)
    ]
    within = [_within(model, name) for name in names]
    one_ways = {name: model.marginal([name]) for name in names}

    return AncestralSampler(
        names=names,
        sizes=tuple(model.groups[name].count for name in names),
        steps=tuple(steps),
        within=tuple(within),
        ones=one_ways,
        total=model.total,
    )


def _step(names: tuple[str, ...], clique: tuple[str, ...], shared: tuple[str, ...], table: Floats) -> Step:
    """Return the step that draws the attributes of a clique that its parent does not share, given the `shared` ones.

    Where the shared groups have probability 0, the new attributes have their own marginal.
    """
    new = tuple(name for name in clique if name not in shared)
    axes = [clique.index(name) for name in (*shared, *new)]
    shape = tuple(table.shape[clique.index(name)] for name in new)
    shares = table.transpose(axes).reshape(-1, int(np.prod(shape)))
    alone = table.sum(axis=others(clique, new)).ravel()
    shares = np.where(shares.sum(axis=1, keepdims=True) > 0, shares, alone)
    ends = np.cumsum(shares, axis=1)

    return Step(
        given=tuple(map(names.index, shared)),
        new=tuple(map(names.index, new)),
        shape=shape,
        ends=_to_steps(ends / ends[:, -1:]),
    )


def _within(model: GraphicalModel, name: str) -> Integers:
    """Return cumulative shares of all cells; those of group g end in (g, g + 1]. Impossible groups are uniform."""
    groups, shares = model.groups[name], model.calibrated.within[name]
    parts = [part if part.any() else np.ones(len(part)) for part in np.split(shares, groups.starts[1:])]
    return np.concatenate([_to_steps((np.cumsum(part) / part.sum())[None]) + g * STEPS for g, part in enumerate(parts)])


def _to_steps(ends: Floats) -> Integers:
    """Return ends in (0, 1], shape (rows, k), as whole steps; each row continues after the previous one."""
    steps = np.rint(ends * STEPS).astype(np.int64)
    steps[:, -1] = STEPS
    return np.asarray((steps + STEPS * np.arange(len(steps))[:, None]).ravel())


def write_ancestral(path: Path, sampler: AncestralSampler) -> None:
    """Write a sampler exactly into one file; it is not flushed to disk, because it can be recomputed for free."""
    steps = [[step.given, step.new, step.shape] for step in sampler.steps]
    index = {"names": sampler.names, "sizes": sampler.sizes, "steps": steps, "total": sampler.total}
    arrays = {"index": np.array(json.dumps(index))}
    arrays |= {f"step{i}": step.ends for i, step in enumerate(sampler.steps)}
    arrays |= {f"within{i}": ends for i, ends in enumerate(sampler.within)}
    arrays |= {f"one{i}": sampler.ones[name] for i, name in enumerate(sampler.names)}
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_ancestral(path: Path) -> AncestralSampler:
    """Return the sampler in a file."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index = json.loads(str(arrays["index"]))
        names = tuple(index["names"])
        steps = tuple(
            Step(given=tuple(given), new=tuple(new), shape=tuple(shape), ends=arrays[f"step{i}"])
            for i, (given, new, shape) in enumerate(index["steps"])
        )
        within = tuple(arrays[f"within{i}"] for i in range(len(names)))
        one_ways = {name: arrays[f"one{i}"] for i, name in enumerate(names)}
        return AncestralSampler(
            names=names, sizes=tuple(index["sizes"]), steps=steps, within=within, ones=one_ways, total=index["total"]
        )
