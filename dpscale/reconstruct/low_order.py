"""Consistent non-negative low-order tables from noisy residuals: what local maximum entropy starts from.

Every table is expected to be what the tables inside it imply; its own noisy residual says how it departs from that,
and `shrink` weighs the two. A pair's expectation is the product of its 1-ways, or that as its neighbours have it where
the noisy pair says so (`near`); or, where that explains the noisy pair better, a chain a — c — b of two other pairs
(`chains`): other noise, so it may be held against the pair's own. A chain helps much where codes lie in order and
misleads where they do not, so a pair is the mean of what either makes of it. A pair that was not measured is its
strongest chain, the one farthest from independence.

Between few steps that see everything (the law of departures; which tables there are) every table is a piece of work of
its own. They go by chunks through `each`, which may make tasks of them: no byte depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.each import Each, plainly
from dpscale.names import AttributeSet
from dpscale.reconstruct.chains import Links, independent
from dpscale.reconstruct.entropy import LowOrder
from dpscale.reconstruct.fit import Margin, proportional_fit
from dpscale.reconstruct.near import REACHES, near
from dpscale.reconstruct.shrink import NoisyTable, best_posterior, learn
from dpscale.residual import center
from dpscale.residual.groups import Groups

Array = NDArray[np.float64]
Margins = list[Margin]
Expected = tuple[NoisyTable, ...]  # one noisy table under several expectations
FIT_ROUNDS, FIT_TOLERANCE = 20, 1e-6
CHUNK_CELLS, CHUNK_TABLES = 1 << 16, 128


@dataclass(frozen=True, eq=False)
class NoisyResidual:
    """What was measured of one residual: centred `values` over groups, each with noise of standard `deviation`."""

    values: Array
    deviation: float


def low_order(
    ones: Mapping[str, Array],
    groups: Mapping[str, Groups],
    measured: Mapping[AttributeSet, NoisyResidual],
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    each: Each = plainly,
) -> LowOrder:
    """The tables of all measured sets, and of the pairs `wanted` where a chain implies more than independence.

    `ones`: non-negative 1-ways of equal sum. `chains`: how often pairs are taken anew with chains as expectations.
    `each(function, items)`: [function(item) for item in items] by other means, such as tasks. All can be pickled; an
    item has about CHUNK_CELLS cells, or one table of more; where chains are sought the function holds the model.
    """
    model = LowOrder(ones, groups, {}, float(next(iter(ones.values())).sum()))
    pairs: dict[AttributeSet, NoisyResidual] = {names: noisy for names, noisy in measured.items() if len(names) == 2}
    alone = _shrunk(model, pairs, {}, each)
    model = _with(model, alone)
    for _ in range(chains if pairs else 0):
        nearest = _by_chunks(each, partial(_nearest, Links.of(model)), pairs)
        chained = _shrunk(model, pairs, nearest, each)
        both = {names: (alone[names] + table) / 2 for names, table in chained.items()}
        model = LowOrder(ones, groups, both, model.total)
    if chains and model.tables:
        left: list[AttributeSet] = [names for names in wanted if len(names) == 2 and names not in pairs]
        sought = {names: model.cells(names) for names in left}
        implied = _by_chunks(each, partial(_strongest, Links.of(model)), sought)
        model = _with(model, {names: table for names, table in implied.items() if table is not None})
    for size in sorted({len(names) for names in measured if len(names) > 2}):
        larger = {names: noisy for names, noisy in measured.items() if len(names) == size}
        model = _with(model, _shrunk(model, larger, {}, each))
    return replace(model, measured=frozenset(measured))


def _with(model: LowOrder, tables: Mapping[AttributeSet, Array]) -> LowOrder:
    return LowOrder(model.ones, model.groups, {**model.tables, **tables}, model.total)


def _noisy(residual: NoisyResidual, reference: Array) -> Array:
    """The noisy table: its own residual on the margins of what is expected."""
    return np.asarray(residual.values + reference - center(reference, range(reference.ndim)))


def _by_chunks(
    each: Each, function: Callable[[Any], Any], pieces: Mapping[AttributeSet, Any]
) -> dict[AttributeSet, Any]:
    """`function` of every (names, piece), which takes a list of these."""
    results = each(function, list(_chunks(pieces)))
    return dict(zip(pieces, chain.from_iterable(results), strict=True))


def _chunks(pieces: Mapping[AttributeSet, Any]) -> Iterator[list[tuple[AttributeSet, Any]]]:
    chunk: list[tuple[AttributeSet, Any]] = []
    cells = 0
    for names, piece in pieces.items():
        chunk.append((names, piece))
        cells += _size(piece)
        if cells >= CHUNK_CELLS or len(chunk) == CHUNK_TABLES:
            yield chunk
            chunk, cells = [], 0
    if chunk:
        yield chunk


def _size(piece: Any) -> int:
    """The cells of a piece: of a number of cells, of a noisy thing, or of a tuple that one leads."""
    leading = piece
    while isinstance(leading, tuple):
        leading = leading[0]
    return leading if isinstance(leading, int) else int(leading.values.size)


def _nearest(links: Links, chunk: list[tuple[AttributeSet, NoisyResidual]]) -> list[Array]:
    return [links.nearest(names, _noisy(residual, independent(links.model, names))) for names, residual in chunk]


def _strongest(links: Links, chunk: list[tuple[AttributeSet, int]]) -> list[Array | None]:
    return [links.strongest(names) for names, _ in chunk]


def _shrunk(
    model: LowOrder, measured: Mapping[AttributeSet, NoisyResidual], expected: Mapping[AttributeSet, Array], each: Each
) -> dict[AttributeSet, Array]:
    """Tables of one size, shrunk towards what is expected and fitted to the tables inside them.

    Where nothing better is known of pairs, neighbours may expect more of a cell than the product of the 1-ways.
    """
    tables: dict[AttributeSet, tuple[Expected, Margins]] = {}
    for names, residual in measured.items():
        expectation = expected[names] if names in expected else model.coarse_marginal(names)
        reference = np.maximum(expectation, 1e-6)
        table = NoisyTable(_noisy(residual, reference), reference, residual.deviation)
        others = () if len(names) > 2 or names in expected else tuple(near(table, reach) for reach in REACHES)
        tables[names] = ((table, *others), _margins(model, names))
    laws = [learn(ways) for ways in zip(*(ways for ways, _ in tables.values()), strict=True)]
    return _by_chunks(each, partial(_fitted, laws, FIT_TOLERANCE * model.total), tables)


def _margins(model: LowOrder, names: AttributeSet) -> Margins:
    margins: Margins = [((axis,), model.coarse[name]) for axis, name in enumerate(names)]
    return [*margins, *model.inside(names)] if len(names) > 2 else margins


def _fitted(
    laws: list[Array], tolerance: float, chunk: list[tuple[AttributeSet, tuple[Expected, Margins]]]
) -> list[Array]:
    return [proportional_fit(best_posterior(ways, laws), margins, FIT_ROUNDS, tolerance)
            for _, (ways, margins) in chunk]  # fmt: skip
