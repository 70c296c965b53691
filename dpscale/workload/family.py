"""Query families: their common interface, families over whole attribute sets, and one-way families.

Default forms of a one-way family need only its matrix or the intervals of its queries. A one-way family is a 0/1 matrix
W of m queries on n cells that is never built for large n. `gram` is WᵀW and `trace` its trace; `answers` applies W
along an axis; `quadratic` is the diagonal of W S Wᵀ for a symmetric S (the variance of each query for covariance S);
`means` is W1/n (the part of a query that remains when its axis is averaged). `matrix` builds W for tests and small
cases. k-way queries are all products of one-way queries.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.base.settings import Settings
from dpscale.domain import Domain
from dpscale.workload.wide import MOST_DENSE, BlockRun, Cut, check_wide, is_wide, weighted_piece

MOST_ENTRIES = 1 << 28  # of the queries of a joint family
CHUNK_ENTRIES = 1 << 22  # of queries of which all are not in memory at once
Shape = tuple[int, ...]


class End(NamedTuple):
    """A cell that names a query: its column in files, the end of its column's name in tables, and a description."""

    column: str
    suffix: str
    description: str
    is_text: bool = False  # a text of the query, not the label of a cell


VALUE = End("value", "", "label that the query asks for; null: missing values")
FIRST = End("low", "from", "label of the first value that the query counts, or lower end of the 95 % interval")
LAST = End("high", "to", "label of the last value that the query counts, or upper end of the 95 % interval")


class Statistic(NamedTuple):
    """Statistic of a number that follows from linear queries (`dpscale.workload.sums`).

    Attributes
    ----------
    power : {1, 2}
        Power of the column's unit: 1 for a mean, 2 for a variance.
    centre, half_range : float
        Those of the values of the number's cells.
    limit : float
        Largest distance of a value from the centre, in half ranges.
    clipped : tuple of float
        Upper limits of the parts of a mean that are clipped below and above the range.
    """

    power: int
    centre: float
    half_range: float
    limit: float = 1.0
    clipped: tuple[float, float] = (0.0, 0.0)


class QueryFamily(Settings):
    """Family of queries. Its parameters are fields, which a job and `Workload.add` set by their names.

    Attributes
    ----------
    name : str
        Name in job files, tables and stored results.
    cumulative : bool
        Whether the queries are running sums over the cells of an axis, or differences of two.
    needs_squares : bool
        Whether the squares of a number are queried.
    """

    name: ClassVar[str]
    cumulative: ClassVar[bool] = False
    needs_squares: ClassVar[bool] = False

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters by name, as in a job file."""
        return self.model_dump(mode="json")

    @property
    def stated(self) -> dict[str, Any]:
        """Parameters as they are given in Python; `parameters` may have hashes in place of arrays."""
        return self.parameters

    @property
    def Options(self) -> type[QueryFamily]:  # noqa: N802
        """Model of the parameters."""
        return type(self)

    @cached_property
    def key(self) -> str:
        """Text that identifies the queries: the name with the values of the parameters."""
        return "/".join([self.name, *map(repr, self.parameters.values())])

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)  # type: ignore[attr-defined]

    @property
    def title(self) -> str:
        """Name of the queries in tables and stored results."""
        return self.name

    def distinct(self, names: Collection[str]) -> Self:
        """Return the family with a title that is not among `names`, if it has a choice."""
        return self

    @property
    def members(self) -> tuple[QueryFamily, ...]:
        """Families of which the queries are those of this one, if it stands for several."""
        return (self,)

    def own_sets(self, domain: Domain) -> tuple[AttributeSet, ...] | None:
        """Return the attribute sets that the parameters determine; None if they are given with the family."""
        return None

    def domain_for(self, domain: Domain) -> Domain:
        """Return the domain with the cells that the queries need."""
        return domain

    def extended(self, domain: Domain, names: AttributeSet) -> AttributeSet:
        """Return a requested attribute set with the number that the queries sum, if any."""
        return names

    def shown(self, names: AttributeSet) -> AttributeSet:
        """Return the names that identify a query of a set: without a number that the queries sum."""
        return names

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Self:
        """Return the family with checked parameters; raise JobError for unsuitable attribute sets."""
        return self


class JointFamily(QueryFamily):
    """Family over whole attribute sets.

    Attributes
    ----------
    degree : int or None
        Required number of attributes; None for any.
    invariant : bool
        Whether the plain mean is the best average of every axis, at least in distribution.
    exchangeable : bool
        Whether every query over two attributes of equal size is invariant under their exchange.
    """

    degree: ClassVar[int | None] = None
    invariant: ClassVar[bool] = False
    exchangeable: ClassVar[bool] = False

    @abstractmethod
    def count(self, shape: Shape) -> int:
        """Return the number m of queries on a shape."""

    @abstractmethod
    def queries(self, shape: Shape) -> Floats:
        """Return all queries on a shape, shape (m, *shape)."""

    def chunks(self, shape: Shape) -> Iterator[Floats]:
        """Yield the queries on a shape in order, in arrays of about `CHUNK_ENTRIES` entries or one query."""
        return in_chunks(self.queries(shape))

    def levels(self, shape: Shape) -> Floats | None:
        """Return the level sets whose running sums are the queries: 0/1, shape (m, *shape); None if it has none."""
        return None

    def pools(self, sets: int) -> bool:
        """Return whether the attributes of this number of sets are of one kind in the search of axis weights."""
        return True

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Self:
        """Return the family; refuse sets of another number of attributes than its degree.

        Without a degree any set fits.
        """
        for attributes in sets:
            if self.degree is not None and len(attributes) != self.degree:
                got = f"{len(attributes)} attributes for family {self.name!r}"
                raise JobError("workload.degree", got, f"{self.degree} attributes", f"write degree = {self.degree}")
        return self

    def check_size(self, shape: Shape) -> None:
        """Raise PlanError if the queries are too many for an array, before it is built."""
        if math.prod(shape) * self.count(shape) > MOST_ENTRIES:
            takes = f"queries of at most {MOST_ENTRIES} entries in total"
            raise PlanError(
                "workload", f"family {self.name} on {math.prod(shape)} cells", takes, "coarsen the attributes"
            )


def in_chunks(queries: Floats) -> Iterator[Floats]:
    """Yield queries, shape (m, sizes…), in arrays of at most `CHUNK_ENTRIES` entries or of one query."""
    step = max(1, CHUNK_ENTRIES // max(1, math.prod(queries.shape[1:])))
    return (queries[start : start + step] for start in range(0, max(1, len(queries)), step))


MOST_LISTED, CHUNK = 1 << 22, 1 << 12  # intervals of a family that are listed, and of a chunk of them
NEGLIGIBLE = 1e-12  # of the largest eigenvalue
STRETCH = 1024  # cells of a stretch of a long axis in a lower bound


class ProductFamily(QueryFamily):
    """Family of all products of one-way queries."""

    @property
    @abstractmethod
    def axes(self) -> tuple[Family, ...]:
        """Distinct one-way families of the attributes."""

    @abstractmethod
    def axis(self, attribute: str) -> Family:
        """Return the one-way family of an attribute."""

    def label_axis(self, attribute: str) -> Family:
        """Return the one-way family whose `bounds` name the queries on an attribute."""
        return self.axis(attribute)

    @property
    @abstractmethod
    def ends(self) -> tuple[End, ...]:
        """The cells of an attribute that name a query in files."""

    @property
    def statistic(self) -> Statistic | None:
        """Statistic of the answers of `linear` that are the answers of the family; None for linear queries."""
        return None

    @property
    def planned_per_answer(self) -> int:
        """Number of planned queries for each answer."""
        return 1

    @property
    def linear(self) -> ProductFamily:
        """Family of the linear queries from which answers follow."""
        return self


class Family(ProductFamily):
    """One-way family, described by functions of the number of cells (see the module).

    A family defines `count`, `answers` and `bounds`; the other forms follow from its matrix, or for axes of more cells
    than a matrix can have from its `intervals`. A closed form replaces any of them.

    Attributes
    ----------
    ends : tuple of End
        The cells that name a query, in the order of `bounds`.
    is_identity : bool
        Whether the queries are the cells.
    invariant : bool
        Whether a rotation of the cells permutes the queries, so that the plain mean is the best average of an axis.
    two_sided : bool
        Whether cumulative queries start at any cell.
    has_intervals : bool
        Whether `intervals` is defined: the family is then accepted on wide axes.
    texts : tuple of str
        Texts that name the queries, if `ends` has texts.
    """

    ends: ClassVar[tuple[End, ...]] = (VALUE,)  # type: ignore[misc]
    is_identity: ClassVar[bool] = False
    invariant: ClassVar[bool] = False
    two_sided: ClassVar[bool] = False
    has_intervals: ClassVar[bool] = False

    @property
    def unit_weight(self) -> float:
        """Weight in plans of a query that has the weight 1 in a job."""
        return 1.0

    @property
    def texts(self) -> tuple[str, ...]:
        return ()

    @property
    def axes(self) -> tuple[Family, ...]:
        return (self,)

    def axis(self, attribute: str) -> Family:
        return self

    @abstractmethod
    def count(self, size: int) -> int:
        """Return the number m of queries on n cells."""

    @abstractmethod
    def answers(self, values: Floats, axis: int) -> Floats:
        """Return W applied along an axis, of which n becomes m."""

    @abstractmethod
    def bounds(self, size: int) -> tuple[Integers, ...]:
        """Return the cells that name each query, one array of shape (m,) for each of `ends`."""

    def intervals(self, size: int) -> tuple[Integers, Integers]:
        """Return, for families of intervals, the number of cells before each query's first cell and up to its last.

        An arc that extends past the end, or covers the whole circle, is represented by the negative of its complement;
        this is valid where the sum over all cells is 0, as for pieces.
        """
        raise NotImplementedError(f"family {self.name} has no intervals")

    def matrix(self, size: int) -> Floats:
        """Return W, shape (m, n)."""
        return self.answers(np.eye(size), 0)

    def gram(self, size: int) -> Floats:
        """Return WᵀW, shape (n, n)."""
        queries = self.matrix(size)
        return np.asarray(queries.T @ queries)

    def trace(self, size: int) -> float:
        """Return the trace of WᵀW."""
        return round(float((self.matrix(size) ** 2).sum()))

    def entry_sum(self, size: int) -> float:
        """Return Σ |sum of the entries| over the queries."""
        return self.trace(size)

    def largest(self, size: int) -> Floats | None:
        """Return the largest absolute entry of every query, shape (m,); None if all are 1."""
        return None

    @property
    def are_counts(self) -> bool:
        """Whether all entries are 0 or 1."""
        return True

    @property
    def vanishes(self) -> bool:
        """Whether all entries are 0."""
        return False

    @property
    def is_integral(self) -> bool:
        """Whether all entries are integers below 1,024."""
        return True

    def quadratic(self, form: Floats) -> Floats:
        """Return the diagonals of W S Wᵀ, shape (…, m), for symmetric matrices S, shape (…, n, n)."""
        queries = self.matrix(form.shape[-1])
        return np.asarray(((queries @ form) * queries).sum(axis=-1))

    def means(self, size: int) -> Floats:
        """Return W1/n, shape (m,)."""
        return self.answers(np.full(size, 1 / size), 0)

    def unit_gram(self, size: int) -> Floats:
        """Return Σ q qᵀ/(qᵀq) over the queries q, shape (n, n)."""
        queries = self.matrix(size)
        lengths = (queries**2).sum(axis=1)
        return np.asarray((queries / np.where(lengths > 0, lengths, 1.0)[:, None]).T @ queries)

    def plain_value(self, size: int) -> float:
        """Return the optimum of an invariant family at the plain mean: the uniform dual of its circulant Gram."""
        values = np.fft.fft(self.gram(size)[0]).real
        return float(np.sqrt(np.maximum(values[1:], 0)).sum() ** 2 / size)

    def tridiagonal(self, size: int) -> tuple[Floats, float] | None:
        """Return G₀⁻¹ (see `optimize.long_axis`) if it is tridiagonal: its diagonal and negated off-diagonal value."""
        return None

    def times_gram(self, values: Floats) -> Floats:
        """Return WᵀW times an array along its leading axis."""
        return np.tensordot(self.gram(len(values)), values, axes=(1, 0))

    def whole_trace(self, size: int) -> float | None:
        """Return the sum of the singular values of W in closed form; None if there is none."""
        return None

    def centred_trace(self, profile: Floats) -> float:
        """Return a lower bound of the sum of the singular values of W(I − u1ᵀ).

        The default is exact for few cells. On a long axis it counts the intervals inside stretches of neighbouring
        cells: the sum for them is that of W for every stretch, less at most |Wu| √n.

        A lower bound of the nuclear norm: W(I − u1ᵀ) differs from W by the rank-one matrix (Wu)1ᵀ of norm |Wu| √n, and
        disjoint stretches of cells have queries of their own, whose norms add.
        """
        size = len(profile)
        if size <= STRETCH or not self.has_intervals:
            return _root_sum(weighted_piece(self.gram(size), profile)[0])

        low, high = self._listed_intervals(size)
        inside = low // STRETCH == (high - 1) // STRETCH
        low, high, before = low[inside], high[inside], np.concatenate([[0.0], np.cumsum(profile)])
        known: dict[bytes, float] = {}
        total = -float(np.linalg.norm(before[high] - before[low])) * math.sqrt(size)

        for start in range(0, size, STRETCH):
            inside_stretch = low // STRETCH == start // STRETCH
            weights = np.zeros((min(STRETCH, size - start),) * 2)
            np.add.at(weights, (low[inside_stretch] - start, high[inside_stretch] - 1 - start), 1.0)
            if weights.tobytes() not in known:
                known[weights.tobytes()] = _root_sum(sum_of_intervals(weights))
            total += known[weights.tobytes()]

        return max(total, 0.0)

    def is_divided(self, size: int) -> bool:
        """Return whether a Gram matrix of cells × cells is too large; without intervals there is no other form."""
        return is_wide(size) and (self.has_intervals or self.is_identity or size > MOST_DENSE)

    def block_gram(self, cut: Cut) -> Floats:
        """Return the Gram matrix on the blocks of a cut, shape (B, B).

        With the weights u² within the blocks (`cut.spread` of ones), a query q has on block b the entry Σ over its
        cells of q_i u²_i. So the Gram matrix of the blocks is Σ over cells i of b and j of b' of u²_i G_ij u²_j. If G
        on the cells would be too large, the queries themselves are computed on the blocks.
        """
        if self.is_divided(cut.size):
            return np.asarray(sum(rows.T @ rows for rows in self._block_queries(cut)))
        starts, weights = np.cumsum(cut.lengths) - cut.lengths, cut.spread(np.ones(len(cut.lengths)))
        weighed = self.gram(cut.size) * np.outer(weights, weights)
        return np.asarray(np.add.reduceat(np.add.reduceat(weighed, starts, axis=0), starts, axis=1))

    def _block_queries(self, cut: Cut) -> Iterator[Floats]:
        """Yield the queries on the blocks of a wide cut, CHUNK queries at a time, shape (queries, blocks).

        The entry of a query on a block is the weight of the cells that both contain. The weights of the cells of a
        block sum to 1. An arc past the end is the negative of its complement (`intervals`).
        """
        low, high = self._listed_intervals(cut.size)
        before = np.concatenate([[0.0], np.cumsum(cut.spread(np.ones(len(cut.lengths))))])
        blocks = np.arange(len(cut.lengths))
        # before[i], the weight of the cells before i, rises from b to b + 1 within block b. So before[i] − b, clipped
        # to [0, 1], is the weight of the cells of block b before i, and a query has the difference of that at its ends
        for start in range(0, len(low), CHUNK):
            at_high, at_low = before[high[start : start + CHUNK], None], before[low[start : start + CHUNK], None]
            yield np.subtract(np.clip(at_high - blocks, 0, 1), np.clip(at_low - blocks, 0, 1))

    def _listed_intervals(self, size: int) -> tuple[Integers, Integers]:
        """Return `intervals` of the family. Raises PlanError for more than MOST_LISTED queries."""
        check_wide(self, size)
        if self.count(size) > MOST_LISTED:
            raise PlanError("workload", f"{self.count(size)} queries of family {self.name} on {size} cells",
                            f"at most {MOST_LISTED}", "coarsen the attribute")  # fmt: skip
        return self.intervals(size)

    def inner_families(self, size: int, cells: int) -> tuple[tuple[Family, float], ...]:
        """Return the weighted families that the family induces within a block, up to terms removed by centring.

        `size` is the number of cells of the axis, `cells` that of the block. The result is empty if the queries within
        a block are those of no family, as here; subclasses have others.
        """
        return ()

    def inner_gram(self, cut: Cut, run: BlockRun) -> Floats:
        """Return the mean Gram matrix within the blocks of a run, up to terms removed by centring, shape (m, m).

        `run` are the successive blocks of equal size of `cut`. Families that have inner families need no matrix;
        divided intervals have a closed form; else blocks are cut from the Gram matrix of the axis.
        """
        families = self.inner_families(cut.size, run.size)
        if families:
            return np.asarray(sum([weight * family.gram(run.size) for family, weight in families]))

        start = sum(earlier.count * earlier.size for earlier in cut.runs[: cut.runs.index(run)])
        if self.is_divided(cut.size):
            return self._inner_intervals(cut.size, start, run)

        places = np.arange(start, start + run.count * run.size).reshape(run.count, run.size)
        gram = self.gram(cut.size)
        return np.asarray(np.mean([gram[np.ix_(place, place)] for place in places], axis=0))

    def _inner_intervals(self, size: int, start: int, run: BlockRun) -> Floats:
        """Return `inner_gram` from the pieces of intervals: those within a block, and the ends of longer ones.

        An interval that ends in other blocks has a suffix in its first block and a prefix in its last; blocks that it
        covers contribute a constant, which centring removes. `weights[a, b]` counts pieces from cell a to b, averaged
        over blocks.
        """
        low, high = self._listed_intervals(size)
        weights = np.zeros((run.size, run.size))
        # blocks of the run in which an interval begins and ends, and its places in these
        (first, low), (last, high) = np.divmod(low - start, run.size), np.divmod(high - start, run.size)
        alone = first == last
        suffixes = (first, low, np.where(alone, high, run.size))
        prefixes = (last, np.zeros_like(high), np.where(alone, 0, high))

        for block, begin, end in (suffixes, prefixes):
            in_run = (block >= 0) & (block < run.count) & (begin < end)
            np.add.at(weights, (begin[in_run], end[in_run] - 1), 1 / run.count)

        return sum_of_intervals(weights)

    def inner_bound(self, cut: Cut, run: BlockRun) -> float:
        """Return a lower bound of the optimum of the centred `inner_gram`.

        The bound (tr (G^½))²/m of the root of a centred Gram matrix; bounds of families add.
        """
        cells = run.size
        families = self.inner_families(cut.size, cells)
        profile = np.full(cells, 1 / cells)
        if families:
            return math.fsum(
                weight * max(family.centred_trace(profile), 0.0) ** 2 / cells for family, weight in families
            )
        return _root_sum(weighted_piece(self.inner_gram(cut, run), profile)[0]) ** 2 / cells

    def inner_search_gram(self, size: int, cells: int) -> Floats | None:
        """Return a Gram matrix whose best weights are those within a block of a wide axis; None for equal weights."""
        return None


def _root_sum(gram: Floats) -> float:
    """Return the sum of the roots of the eigenvalues of a Gram matrix: of the singular values of its queries."""
    values = np.linalg.eigvalsh((gram + gram.T) / 2)
    return float(np.sqrt(values[values > NEGLIGIBLE * values[-1]]).sum())


def sum_of_intervals(weights: Floats) -> Floats:
    """Return Σ weights[a, b] · 1[a,b] 1[a,b]ᵀ over a ≤ b: entry (i, j) sums a ≤ min(i, j), b ≥ max(i, j)."""
    summed = np.cumsum(np.cumsum(weights, axis=0)[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(np.triu(summed) + np.triu(summed, 1).T)
