"""Measurement plan: blocks, noise, cost and expected errors, before any data are read, and its files.

A plan is scale-free: it assigns each block a *share* of the privacy cost β. Block b measures K_b·marginal with noise of
variance Δ_b² / (share_b · β), where Δ_b² is the largest squared column norm of K_b, so the block costs share_b · β
(QuerySmasher, section 3). Laplace noise of scale Δ_b / (share_b · ε), with Δ_b the largest L1 norm, costs share_b · ε,
and the "privacy cost" is ε². The resulting errors are computed by `accuracy`.

plan.json describes the plan, blocks.npz has the blocks in columns, factors.npz the integer matrices. All three are
exact. plan.json contains the hashes of the content of the other two.

*Fields of an integer strategy for JSON.*
Any reader can compute its norms and its digest from them. Small matrices are written as numbers, larger ones
compressed, and the largest as the norms of their columns.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscale.base.display import glance, safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import MOST_PARTS, Domain
from dpscale.domain.hierarchy import Tree
from dpscale.plans.accuracy import Accuracy, accuracy_of
from dpscale.plans.attribute_sets import AttributeSets, CountSources, count_sources
from dpscale.plans.blocks import NOISES, Blocks, Strategy
from dpscale.plans.circulant import CirculantFactor
from dpscale.plans.factor import Factor
from dpscale.plans.layered import LayeredFactor
from dpscale.plans.nested import NestedFactor
from dpscale.plans.spectral import SpectralFactor
from dpscale.plans.tree import TreeFactor
from dpscale.storage.files import read_bytes, reading, write_whole, writing
from dpscale.workload import Workload
from dpscale.workload.merging import merge_cells
from dpscale.workload.residual import kron

SHOWN_CELLS = 4096  # of a set whose strategy is returned as a matrix
Arrays = Mapping[str, NDArray[Any]]

SHOWN, MOST = 1 << 12, 1 << 23  # most entries of a matrix that is written as numbers, and compressed
LEVEL = 4  # of compression: the highest takes 15 times as long for 4 % fewer bytes

Fields = dict[str, Any]


def _check_numbers(domain: Domain, blocks: Blocks) -> None:
    """Raise PlanError for a block of numbers that cannot be counted exactly, or whose effect is not bounded.

    A record of a set with several numbers is counted in products of parts, at most MOST_PARTS.
    """
    _check_totals(domain, blocks)
    if len(domain.numbers) < 2:
        return

    for names in blocks.sets:
        parts = math.prod(domain[name].largest_part for name in names)
        if parts > MOST_PARTS:
            both = ", ".join(name for name in names if name in domain.number_names)
            got = f"one measurement of {both} with {parts:,} parts of a record"
            raise PlanError(
                "numbers", got, f"at most {MOST_PARTS:,}", "use larger steps, or mechanism weighted-residuals"
            )


def _check_public_totals(domain: Domain, blocks: Blocks, mechanism: str) -> None:
    """Raise PlanError for public totals beside measurements of several residuals together."""
    if domain.public_totals and not len(blocks):
        raise PlanError("totals", "all queries of the workload", "queries that do not follow from public totals",
                        "add others, or read them from the totals")  # fmt: skip
    if domain.public_totals and not (blocks.commutes and blocks.measures_one_residual):
        raise PlanError("totals", f"given for {mechanism}, which measures several residuals together",
                        "weighted-residuals, query-smasher, residual-planner or weighted-fourier",
                        "use one of them, or leave the totals out")  # fmt: skip


def _check_levels(workload: Workload, blocks: Blocks, mechanism: str) -> None:
    """Raise PlanError for public totals at another level of a hierarchy than a set, in a plan of separate levels.

    Levels of a hierarchy that are planned together (`has_trees`) take totals of any level.
    """
    if blocks.has_trees:
        return

    used = {name for names in workload.sets for name in names}
    for total in workload.domain.public_totals:
        for name in total.names:
            hierarchy = workload.domain.hierarchy_of(name)
            levels = () if hierarchy is None else hierarchy.names
            other = [level for level in levels if level in used and level != name]
            if other:
                raise PlanError("totals", f"given by {name}, for estimates of {other[0]} by {mechanism}",
                                "a mechanism that plans levels together", "use weighted-residuals")  # fmt: skip


def _check_totals(domain: Domain, blocks: Blocks) -> None:
    """Raise PlanError for a block that a unit's bounded total of a number does not bound (`dpscale.domain.number`).

    A bounded total of a unit bounds the effect on centred rows only, and on one such number at a time.
    """
    bounded = frozenset(total.name for total in domain.totals)
    for attributes, which in zip(blocks.sets, blocks.which.tolist(), strict=True) if bounded else ():
        axes = [axis for axis, name in enumerate(attributes) if name in bounded]
        if len(axes) > 1:
            raise PlanError("numbers", f"one measurement of {' and '.join(attributes[axis] for axis in axes)}",
                            'one number with per_unit = "total"', "use separate workloads for them")  # fmt: skip
        if axes and not _is_centred(blocks.strategies[which], axes[0]):
            raise PlanError(f"numbers.{attributes[axes[0]]}.per_unit", "one measurement of sums and counts together",
                            "mechanism weighted-residuals", "set it, or leave per_unit out")  # fmt: skip


@lru_cache(maxsize=1024)
def _is_centred(strategy: Strategy, axis: int) -> bool:
    """Return whether the rows of a strategy sum to zero along an axis, exactly.

    A joint strategy has one factor for all axes. Rows of "center" sum to zero; those of "identity" do not.
    """
    joint = len(strategy) == 1
    factor = strategy[0 if joint else axis]
    if factor.matrix is None or factor.kind not in ("matrix", "full"):
        return factor.kind == "center" and len(factor.shape) == 1
    rows = factor.matrix.astype(object).reshape(-1, *factor.shape)
    return not rows.sum(axis=1 + (axis if joint else 0)).any()


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Measurement plan of a matrix mechanism. Immutable; created by `dpscale.plan`.

    Parameters
    ----------
    workload : Workload
    mechanism : str
    blocks : Blocks
    error : float
        Weighted sum of the variances of the queries at privacy cost 1.
    bound : float
        Lower bound on the error of all plans that the mechanism optimises over; 0 if none is known.
    notes : tuple of str
        Remarks for the user.
    stationary : float or None
        If the plan chose weights of the axes: first-order relative change of the error when a thousandth of the weight
        of an axis is moved.
    floor : float
        Lower bound on the error of all matrix mechanisms; 0 if none is known.

    Examples
    --------
    >>> import dpscale as dp
    >>> w = dp.Workload(dp.Domain(a=4, b=3)).add("marginal", degree=1)
    >>> dp.plan(w).mechanism
    'weighted-residuals'
    """

    workload: Workload
    mechanism: str
    blocks: Blocks
    error: float
    bound: float
    notes: tuple[str, ...] = ()
    stationary: float | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Convert the blocks to columns."""
        object.__setattr__(self, "blocks", Blocks.of(self.workload.domain.axis_names, self.blocks))
        _check_numbers(self.workload.domain, self.blocks)
        _check_public_totals(self.workload.domain, self.blocks, self.mechanism)
        _check_levels(self.workload, self.blocks, self.mechanism)

    def __repr__(self) -> str:
        return f"Plan({self.mechanism}, {self.query_count} queries, {len(self.blocks)} measurements)"

    def _repr_html_(self) -> str:
        """Return a summary of the plan for notebooks.

        `optimality_gap` is infinite if no bound is known.
        """
        gap = f"{100 * self.optimality_gap:.2g} %" if math.isfinite(self.optimality_gap) else "not known"
        return glance(f"Plan by {self.mechanism}", {
            "queries": f"{self.query_count:,}", "measurements": f"{len(self.blocks):,}", "noise": self.noise,
            "root mean square error at privacy cost 1": f"{self.rmse():.4g}", "above the certified optimum by": gap,
        })  # fmt: skip

    @property
    def domain(self) -> Domain:
        """Domain of the workload."""
        return self.workload.domain

    @property
    def query_count(self) -> int:
        """Number of queries, including duplicates.

        Examples
        --------
        >>> dp.plan([["borough"], ["day"]], domain).query_count
        5
        """
        return self.workload.query_count

    @property
    def optimality_gap(self) -> float:
        """Certified relative gap: error / bound − 1, or inf if no bound is known.

        Examples
        --------
        >>> dp.plan([["borough", "fare"]], domain).optimality_gap < 0.01
        True
        """
        return max(self.error / self.bound - 1, 0.0) if self.bound > 0 else math.inf

    @property
    def noise(self) -> str:
        """Kind of noise of all blocks."""
        return self.blocks[0].noise

    def rmse(self, privacy_cost: float = 1.0) -> float:
        """Return the root of Σ weight · variance over the number of queries.

        Parameters
        ----------
        privacy_cost : float
            Squared Gaussian-DP μ, or ε² for Laplace noise.

        Returns
        -------
        float
            In records.

        Raises
        ------
        PlanError
            If `privacy_cost` is not a finite number above 0.

        Examples
        --------
        >>> plan = dp.plan([["borough"]], domain)
        >>> round(plan.rmse(), 6), round(plan.rmse(privacy_cost=0.25), 6)
        (1.0, 2.0)
        """
        if not isinstance(privacy_cost, Real) or not 0 < privacy_cost < math.inf:
            raise PlanError(
                "privacy_cost", safe_repr(privacy_cost), "a number above 0", "give squared μ, or ε² of Laplace noise"
            )
        return math.sqrt(self.error / privacy_cost / self.query_count)

    @property
    def bound_all(self) -> float | None:
        """Lower bound on the root mean square error of all matrix mechanisms at privacy cost 1; None if not known."""
        return math.sqrt(self.floor / self.query_count) if self.floor > 0 else None

    @cached_property
    def accuracy(self) -> Accuracy:
        """Errors of the planned noise at privacy cost 1."""
        return accuracy_of(self.domain, self.blocks)

    def variance(self, attributes: str | Sequence[str], query: ArrayLike) -> float:
        """Return the variance of one linear query at privacy cost 1.

        Parameters
        ----------
        attributes : str or sequence of str
        query : array_like
            One axis for each attribute.

        Returns
        -------
        float

        Raises
        ------
        PlanError
            If the query lies outside the row space of the strategy.

        Examples
        --------
        >>> round(dp.plan([["borough"]], domain).variance("borough", [1, 0]), 6)
        1.0
        """
        return self.accuracy.variance([attributes] if isinstance(attributes, str) else attributes, query)

    def strategy(self, attributes: str | Sequence[str]) -> Floats:
        """Return the strategy on an attribute set, scaled so the largest column norm is 1.

        Parameters
        ----------
        attributes : str or sequence of str

        Returns
        -------
        ndarray, shape (rows, cells)

        Raises
        ------
        PlanError
            If the set is not measured or has too many cells.

        Examples
        --------
        >>> dp.plan([["borough"]], domain, mechanism="identity").strategy("borough").shape
        (2, 2)
        """
        ordered = self.domain.ordered([attributes] if isinstance(attributes, str) else attributes)
        matching = [self.blocks[index] for index in self.blocks.sets.find(ordered)]
        if not matching or self.domain.cells(ordered) > SHOWN_CELLS:
            why = "not measured" if not matching else f"{self.domain.cells(ordered)} cells"
            raise PlanError(
                "strategy",
                f"{', '.join(ordered)}: {why}",
                f"a measured set of up to {SHOWN_CELLS} cells",
                "use another set",
            )

        block = matching[0]
        rows = kron([factor.explicit().astype(np.float64) for factor in block.factors])
        if block.merged is not None:
            shape = block.merged.domain.shape(ordered)
            rows = block.merged.spread(ordered, rows.reshape(-1, *shape)).reshape(len(rows), -1)
        return rows / math.sqrt(block.squared_l2_sensitivity)

    @cached_property
    def sources(self) -> CountSources:
        """Attribute sets to count, and the counted set that each block is measured from."""
        return count_sources(self.domain, self.blocks.sets)

    @cached_property
    def counted_sets(self) -> tuple[AttributeSet, ...]:
        """Attribute sets to count, in domain order."""
        return tuple(self.sources.sets)


def is_consistent(sets: AttributeSets, attributes: int) -> bool:
    """Return whether the sets refer to `attributes` attributes, each in ascending order, and are contiguous.

    Within a set, positions rise. `first` are the starts of the sets but the first, where they need not.
    """
    if sets.ends.dtype != np.int32 or sets.members.dtype != np.int32 or sets.ends.ndim != 1 or sets.members.ndim != 1:
        return False
    if (sets.degrees < 0).any() or int(sets.ends[-1:].sum()) != len(sets.members):
        return False
    if not ((sets.members >= 0) & (sets.members < attributes)).all():
        return False

    rises = np.diff(sets.members) > 0
    first = sets.starts[(sets.starts > 0) & (sets.starts < len(sets.members))]
    rises[first - 1] = True  # boundaries between sets
    return bool(rises.all())


def has_sources(sources: CountSources, blocks: int, attributes: int) -> bool:
    """Return whether every block has a counted set as its source."""
    source = sources.source
    are_sets = len(source) == blocks and bool(((source >= 0) & (source < len(sources.sets))).all())
    return are_sets and is_consistent(sources.sets, attributes)


def fits_domain(blocks: Blocks, domain: Domain) -> bool:
    """Return whether all factors match the sizes of their blocks' attributes and measure something, with known noise.

    A factor of sensitivity 0 measures nothing, so no noise would protect it and no cost would be stated.
    """
    columns = (blocks.which, blocks.share, blocks.whole, blocks.noise)
    if any(len(column) != len(blocks.sets) for column in columns) or not _known(blocks):
        return False
    measures = []
    for strategy in blocks.strategies:
        measures.append(math.prod(factor.squared_l2_sensitivity for factor in strategy) > 0)
    return bool(np.array(measures)[blocks.which].all()) and _shapes(blocks, domain)


def _known(blocks: Blocks) -> bool:
    """Return whether every strategy and noise that a block refers to exists."""
    which, noise = blocks.which, blocks.noise
    return bool(
        ((which >= 0) & (which < len(blocks.strategies))).all() and ((noise >= 0) & (noise < len(NOISES))).all()
    )


def _shapes(blocks: Blocks, domain: Domain) -> bool:
    """Return whether the axes of every block's strategy have the sizes of its attributes.

    The sizes of all strategies' axes are concatenated in `flat`, from `starts`, so that all blocks are compared at
    once.
    """
    sizes = np.array(domain.shape(domain.axis_names), np.int64)
    axes = [_axes(strategy) for strategy in blocks.strategies]
    degrees = np.array([len(axis) for axis in axes], np.int64)[blocks.which]
    if not (degrees == blocks.sets.degrees).all():
        return False

    starts = np.cumsum([0, *map(len, axes)])[:-1][blocks.which]
    within = np.arange(int(degrees.sum())) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    flat: NDArray[np.int64] = np.array([size for axis in axes for size in axis], np.int64)
    return bool((flat[np.repeat(starts, degrees) + within] == sizes[blocks.sets.members]).all())


def _axes(strategy: Strategy) -> tuple[int, ...]:
    """Return the sizes of a strategy's axes: one joint factor, or one factor per axis. Invalid mixtures give −1."""
    if len(strategy) > 1 and any(len(factor.shape) != 1 for factor in strategy):
        return (-1,) * sum(len(factor.shape) for factor in strategy)
    return tuple(size for factor in strategy for size in factor.shape)


PLAN, FACTORS, BLOCKS = "plan.json", "factors.npz", "blocks.npz"


def content_of(plan: Plan) -> dict[str, Any]:
    """Return the content of plan.json; equal for a written plan and for the same plan read back.

    Entries that only some plans have are left out of others, so that their files do not change.
    """
    factors = _numbered(plan.blocks)
    optional: dict[str, Any] = {}  # entries that only some plans have
    if plan.stationary is not None:
        optional["stationary"] = plan.stationary
    if optional or plan.floor > 0:
        optional["floor"] = plan.floor
    merged = plan.blocks.merged
    if merged is not None:
        optional["merged"] = {"classes": merged.sizes, "sha256": merged.digest}

    strategies = [[factors[id(factor)][0] for factor in strategy] for strategy in plan.blocks.strategies]
    return optional | {
        "mechanism": plan.mechanism,
        "workload": plan.workload.digest,
        "error": plan.error,
        "bound": plan.bound,
        "notes": list(plan.notes),
        "factors": {key: _describe(factor) for key, factor in factors.values()},
        "strategies": strategies,
        "blocks": {"count": len(plan.blocks), "sha256": plan.blocks.digest},
    }


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content of plan.json, by which the ledger identifies a plan."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _numbered(blocks: Blocks) -> dict[int, tuple[str, Factor]]:
    """Return the different factors of all strategies with a key, "f0", "f1" and so on, by their identity."""
    factors: dict[int, tuple[str, Factor]] = {}
    for strategy in blocks.strategies:
        for factor in strategy:
            factors.setdefault(id(factor), (f"f{len(factors)}", factor))
    return factors


def write_plan(folder: Path, plan: Plan) -> None:
    """Write a plan to a folder: arrays of factors, columns of blocks, and plan.json, which has their digests."""
    arrays: dict[str, Any] = {}
    for key, factor in _numbered(plan.blocks).values():
        arrays |= dict(_arrays(key, factor))
    _write_arrays(folder / FACTORS, arrays, packed=True)
    _write_arrays(folder / BLOCKS, _columns(plan))
    write_content(folder, content_of(plan))


def _write_arrays(path: Path, arrays: Arrays, packed: bool = False) -> None:
    """Write a .npz file, packed at the fastest level: others take ten times longer for a tenth of the size."""
    method, level = (zipfile.ZIP_DEFLATED, 1) if packed else (zipfile.ZIP_STORED, None)
    with writing(path) as file, zipfile.ZipFile(file, "w", method, compresslevel=level) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _columns(plan: Plan) -> dict[str, NDArray[Any]]:
    """Return the arrays of blocks.npz: the blocks and their counted sets.

    Attributes are stored by position in the domain, strategies by position in plan.json, noises by position in
    `NOISES`.
    """
    blocks, sources = plan.blocks, plan.sources
    return {"members": blocks.sets.members, "ends": blocks.sets.ends, "strategy": blocks.which, "share": blocks.share,
            "whole": blocks.whole, "noise": blocks.noise, "counted": sources.sets.members,
            "counted_ends": sources.sets.ends, "source": sources.source}  # fmt: skip


def write_content(folder: Path, content: Mapping[str, Any]) -> None:
    """Write plan.json, by whose hash the ledger identifies a plan."""
    write_whole(folder / PLAN, json.dumps(content).encode())


def read_content(folder: Path) -> dict[str, Any]:
    """Return the content of plan.json. Raises ValueError if it is missing or no JSON object."""
    try:
        return dict(json.loads(read_bytes(folder / PLAN)))
    except (FileNotFoundError, TypeError):
        raise ValueError(f"no {PLAN}") from None


def read_plan(folder: Path, workload: Workload) -> Plan:
    """Read a plan written for the same workload.

    Parameters
    ----------
    folder : Path
    workload : Workload

    Raises
    ------
    JobError
        If the files are incomplete or inconsistent, or the workload has changed.
    """
    try:
        content = json.loads(read_bytes(folder / PLAN))
        with reading(folder / FACTORS) as file, np.load(file, allow_pickle=False) as matrices:
            factors = {key: _factor(key, value, matrices) for key, value in content["factors"].items()}
        with reading(folder / BLOCKS) as file, np.load(file, allow_pickle=False) as columns:
            blocks, sources = _blocks(workload.domain, content["strategies"], factors, dict(columns))
            blocks = blocks.merging(merge_cells(workload)) if "merged" in content else blocks
    except (FileNotFoundError, ValueError, KeyError, IndexError, TypeError, zipfile.BadZipFile):
        raise JobError(
            "run directory", f"no complete plan in {folder}", "a planned run", "run `dpscale run` again"
        ) from None

    if content["workload"] != workload.digest:
        raise JobError("run directory", "the workload changed since it was planned",
                       "the files used for planning", "start a new run")  # fmt: skip

    _check(folder, content["blocks"], blocks, sources, workload.domain)
    fields = content["mechanism"], blocks, content["error"], content["bound"], tuple(content["notes"])
    plan = Plan(workload, *fields, content.get("stationary"), content.get("floor", 0.0))
    vars(plan)["sources"] = sources

    return plan


def _blocks(
    domain: Domain, strategies: Sequence[Sequence[str]], factors: Mapping[str, Factor], columns: Arrays
) -> tuple[Blocks, CountSources]:
    """Return the blocks of a stored plan, whose strategies are lists of keys of factors, and the counted sets."""
    sets = AttributeSets(domain.axis_names, columns["members"], columns["ends"])
    of_factors = tuple(tuple(factors[key] for key in keys) for keys in strategies)
    blocks = Blocks(
        sets=sets,
        strategies=of_factors,
        which=columns["strategy"],
        share=columns["share"],
        whole=columns["whole"],
        noise=columns["noise"],
    )
    counted = AttributeSets(domain.axis_names, columns["counted"], columns["counted_ends"])
    return blocks, CountSources(counted, columns["source"])


def _check(folder: Path, record: Mapping[str, Any], blocks: Blocks, sources: CountSources, domain: Domain) -> None:
    """Raise JobError unless the blocks are those of plan.json and can be measured.

    `record` is the entry of plan.json on the blocks. The three checks: the digest and places of the blocks, their
    domain, and their shares of the budget.
    """
    same, axes = record == {"count": len(blocks), "sha256": blocks.digest}, len(domain.axes)
    if not same or not is_consistent(blocks.sets, axes) or not has_sources(sources, len(blocks), axes):
        raise JobError("run directory", f"the plan in {folder} has other blocks than its plan.json says",
                       "the original plan", "start a new run")  # fmt: skip
    if not fits_domain(blocks, blocks.domain_of(domain)):
        raise JobError("run directory", f"the plan in {folder} has a block that does not fit its attributes or noise",
                       "the original plan", "start a new run")  # fmt: skip
    if not bool(((blocks.share > 0) & (blocks.share <= 1)).all()):
        raise JobError(
            "run directory", f"the plan in {folder} has a share outside (0, 1]", "the original plan", "start a new run"
        )


def _arrays(key: str, factor: Factor) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a factor: a matrix, those of an implicit or nested factor, or a tree and its multipliers.

    Arrays are named `key`, or KEY.NAME as `_factor` reads them. The parents of a tree's nodes are named by the digest
    of the tree, because several factors may share it.
    """
    if isinstance(factor, NestedFactor):
        for number, part in enumerate(factor.parts):
            yield from _arrays(f"{key}.{number}", part)
    elif isinstance(factor, TreeFactor):
        tree = factor.levels
        yield from ((f"{tree.digest}.{level}", parent) for level, parent in enumerate(tree.parents))
        yield from ((f"{key}.{level}", multiplier) for level, multiplier in enumerate(factor.multipliers))
        if factor.spread is not None:
            yield f"{key}.spread", factor.spread
    elif isinstance(factor, LayeredFactor):
        yield f"{key}.top", factor.top
        yield f"{key}.multipliers", factor.multipliers
    elif isinstance(factor, SpectralFactor):
        yield f"{key}.coefficients", factor.coefficients
        yield f"{key}.multipliers", factor.multipliers
        yield f"{key}.spread", factor.spread
    elif isinstance(factor, CirculantFactor):
        yield f"{key}.kernel", factor.kernel
    elif factor.matrix is not None:
        yield key, factor.matrix


def _describe(factor: Factor) -> dict[str, Any]:
    """Return the entry of a factor in the JSON of a plan; a digest stands for arrays that the plan stores elsewhere.

    A key that does not apply is left out: matrix, axis weights and spaces exist for explicit matrices alone.
    """
    described: dict[str, Any] = {"kind": factor.kind, "shape": list(factor.shape)}
    if isinstance(factor, NestedFactor):
        described["levels"] = [_describe(part) for part in factor.parts]
    if isinstance(factor, TreeFactor):
        described |= {"tree": factor.levels.digest, "depth": factor.levels.depth, "centred": factor.centred}
        if factor.known >= 0:  # the level whose counts are known; -1: none
            described["known"] = factor.known
        described["sha256"] = factor.digest

    if isinstance(factor, LayeredFactor):
        return described | {"widths": list(factor.widths), "sha256": factor.digest}
    if isinstance(factor, SpectralFactor):
        return described | {"even": factor.even, "sha256": factor.digest}  # its weights are an array
    if isinstance(factor, CirculantFactor):
        return described | {"sha256": factor.digest}

    if factor.matrix is not None:
        described["sha256"] = factor.digest
    if factor.weights is not None:
        described["weights"] = [None if weight is None else list(weight) for weight in factor.weights]
    if factor.spaces is not None:
        described["spaces"] = [list(axes) for axes in factor.spaces]
    return described


def _factor(key: str, described: dict[str, Any], matrices: Mapping[str, Any]) -> Factor:
    """Return a factor from its entry in plan.json and its arrays, which are named by its key.

    Raises ValueError if the factor does not have that entry, for example because an array was changed.

    An entry says which class the factor has: by its tree, its kind, or its levels for a nested one. Arrays are named
    KEY.NAME in `matrices`; `key` is the prefix. The parts of a nested factor are described in `levels` and named
    KEY.NUMBER.
    """
    # JSON has lists where factors have tuples
    stored_weights = described.get("weights")
    weights = None
    if stored_weights is not None:
        weights = tuple(None if of_axis is None else tuple(of_axis) for of_axis in stored_weights)
    spaces = described.get("spaces")
    axes_of = None if spaces is None else tuple(tuple(axes) for axes in spaces)
    shape, levels = tuple(described["shape"]), described.get("levels")
    factor: Factor

    if "tree" in described:
        factor = _tree_factor(key, described, matrices)
    elif described["kind"] == "spectral":
        known, multipliers, spread = (matrices[f"{key}.{name}"] for name in ("coefficients", "multipliers", "spread"))
        weights_of, even = (tuple(spread.tolist()),), described["even"]
        factor = SpectralFactor("spectral", shape, None, weights_of, None, known, multipliers, even)
    elif described["kind"] == "circulant":
        factor = CirculantFactor("circulant", shape, kernel=matrices[f"{key}.kernel"])
    elif described["kind"] == "layered":
        top, multipliers, widths = matrices[f"{key}.top"], matrices[f"{key}.multipliers"], tuple(described["widths"])
        factor = LayeredFactor("layered", shape, top=top, multipliers=multipliers, widths=widths)
    elif levels is None:
        factor = Factor(kind=described["kind"], shape=shape, matrix=matrices.get(key), weights=weights, spaces=axes_of)
    else:
        top, *inner = [_factor(f"{key}.{number}", level, matrices) for number, level in enumerate(levels)]
        factor = NestedFactor(described["kind"], shape, weights=weights, top=top, inner=tuple(inner))

    # the entry has digests of the arrays, so that a changed array gives another entry
    if _describe(factor) != described:
        raise ValueError("a factor differs from its digest")
    return factor


def _tree_factor(key: str, described: Mapping[str, Any], arrays: Mapping[str, Any]) -> TreeFactor:
    """Return the factor of a tree, with the parents of the nodes and the multipliers of each level from arrays."""
    depth = described["depth"]
    tree = Tree(tuple(arrays[f"{described['tree']}.{level}"] for level in range(depth)))
    multipliers = tuple(arrays[f"{key}.{level}"] for level in range(depth + 1))
    spread = arrays[f"{key}.spread"] if described["centred"] else None
    shape, known = tuple(described["shape"]), described.get("known", -1)
    return TreeFactor(described["kind"], shape, tree=tree, multipliers=multipliers, spread=spread, known=known)


def factor_fields(factor: Factor) -> Fields:
    """Return a strategy's integers: as numbers if small, compressed if large, as column norms if too large.

    The order is that of the classes: strategies without a matrix state their integers, and a matrix its entries. A
    matrix of at most SHOWN entries is stated as numbers, one of at most MOST compressed.
    """
    fields: Fields = {"kind": factor.kind, "shape": list(factor.shape)}
    if isinstance(factor, NestedFactor):
        return fields | {
            "levels": [factor_fields(part) for part in factor.parts],
            "counts": [run.count for run in factor.runs],
        }
    if isinstance(factor, TreeFactor):
        return fields | {
            "parents": [packed(of_level) for of_level in factor.levels.parents],
            "multipliers": [packed(of_level) for of_level in factor.multipliers],
            "spread": None if factor.spread is None else packed(factor.spread),
            "known": factor.known,
        }
    if isinstance(factor, LayeredFactor):
        return fields | {
            "widths": list(factor.widths),
            "top": packed(factor.top),
            "multipliers": packed(factor.multipliers),
        }
    if isinstance(factor, SpectralFactor):
        integers = {"coefficients": packed(factor.coefficients), "multipliers": packed(factor.multipliers)}
        return fields | integers | {"spread": packed(factor.spread), "even": factor.even}
    if isinstance(factor, CirculantFactor):
        return fields | {"packed": packed(factor.kernel)}
    if factor.matrix is None:
        return fields
    if factor.matrix.size <= SHOWN:
        return fields | {"matrix": factor.matrix.tolist()}
    if factor.matrix.size <= MOST:
        return fields | {"packed": packed(factor.matrix)}
    return fields | {"columns": _factor_columns(factor)}


def packed(values: Integers) -> str:
    compressed = zlib.compress(np.ascontiguousarray(values, dtype="<i8").tobytes(), LEVEL)
    return base64.b64encode(compressed).decode()


def _factor_columns(factor: Factor) -> Fields:
    """Return the exact sums of squares and of absolute entries of every column of a matrix, as text, and its digest."""
    squared, absolute = [], []
    for column in np.asarray(factor.matrix).T:
        values = column.astype(object)
        squared.append(str((values**2).sum()))
        absolute.append(str(abs(values).sum()))
    return {"sha256": factor.digest, "squared": squared, "absolute": absolute}
