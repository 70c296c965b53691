"""Plan files: plan.json describes the plan, blocks.npz has the blocks in columns, factors.npz the integer matrices.

All three are exact. plan.json contains the hashes of the content of the other two.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.domain.hierarchy import Tree
from dpscale.plans.attribute_sets import AttributeSets, CountSources
from dpscale.plans.blocks import NOISES, Blocks, Strategy
from dpscale.plans.factor import Factor
from dpscale.plans.nested import NestedFactor
from dpscale.plans.plan import Plan
from dpscale.plans.toeplitz import ToeplitzFactor
from dpscale.plans.tree import TreeFactor
from dpscale.storage.files import read_bytes, reading, write_whole, writing
from dpscale.workload import Workload
from dpscale.workload.wide import last_cell

Arrays = Mapping[str, NDArray[Any]]


def is_consistent(sets: AttributeSets, attributes: int) -> bool:
    """Return whether the sets refer to `attributes` attributes, each in ascending order, and are contiguous."""
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
    there = len(source) == blocks and bool(((source >= 0) & (source < len(sources.sets))).all())
    return there and is_consistent(sources.sets, attributes)


def fits_domain(blocks: Blocks, domain: Domain) -> bool:
    """Return whether all factors match the sizes of their blocks' attributes and the noise is known."""
    columns = (blocks.which, blocks.share, blocks.whole, blocks.noise)
    if any(len(column) != len(blocks.sets) for column in columns) or not _known(blocks):
        return False
    wanted = np.array([math.prod(one.squared_l2_sensitivity for one in strategy) > 0 for strategy in blocks.strategies])
    return bool(wanted[blocks.which].all()) and _shapes(blocks, domain)


def _known(blocks: Blocks) -> bool:
    """Return whether every strategy and noise that a block refers to exists."""
    which, noise = blocks.which, blocks.noise
    return bool(
        ((which >= 0) & (which < len(blocks.strategies))).all() and ((noise >= 0) & (noise < len(NOISES))).all()
    )


def _shapes(blocks: Blocks, domain: Domain) -> bool:
    """Return whether the axes of every block's strategy have the sizes of its attributes."""
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
    """Return the content of plan.json; equal for a written plan and for the same plan read back."""
    factors = _numbered(plan.blocks)
    flat = {} if plan.stationary is None else {"stationary": plan.stationary, "floor": plan.floor}
    strategies = [[factors[id(factor)][0] for factor in strategy] for strategy in plan.blocks.strategies]
    return flat | {
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
    factors: dict[int, tuple[str, Factor]] = {}
    for strategy in blocks.strategies:
        for factor in strategy:
            factors.setdefault(id(factor), (f"f{len(factors)}", factor))
    return factors


def write_plan(folder: Path, plan: Plan) -> None:
    """Write a plan to a folder."""
    factors = _numbered(plan.blocks).values()
    arrays = dict(named for key, factor in factors for named in _arrays(key, factor))
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
    sets = AttributeSets(domain.axis_names, columns["members"], columns["ends"])
    made = tuple(tuple(factors[key] for key in keys) for keys in strategies)
    blocks = Blocks(sets, made, *(columns[name] for name in ("strategy", "share", "whole", "noise")))
    counted = AttributeSets(domain.axis_names, columns["counted"], columns["counted_ends"])
    return blocks, CountSources(counted, columns["source"])


def _check(folder: Path, record: Mapping[str, Any], blocks: Blocks, sources: CountSources, domain: Domain) -> None:
    """Raise JobError unless the blocks are those of plan.json and can be measured."""
    same, axes = record == {"count": len(blocks), "sha256": blocks.digest}, len(domain.axes)
    if not same or not is_consistent(blocks.sets, axes) or not has_sources(sources, len(blocks), axes):
        raise JobError("run directory", f"the plan in {folder} has other blocks than its plan.json says",
                       "the original plan", "start a new run")  # fmt: skip
    if not fits_domain(blocks, domain):
        raise JobError("run directory", f"the plan in {folder} has a block that does not fit its attributes or noise",
                       "the original plan", "start a new run")  # fmt: skip
    if not bool(((blocks.share > 0) & (blocks.share <= 1)).all()):
        raise JobError(
            "run directory", f"the plan in {folder} has a share outside (0, 1]", "the original plan", "start a new run"
        )


def _arrays(key: str, factor: Factor) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a factor: a matrix, those of a nested or Toeplitz factor, or a tree and its multipliers."""
    if isinstance(factor, NestedFactor):
        for number, part in enumerate(factor.parts):
            yield from _arrays(f"{key}.{number}", part)
    elif isinstance(factor, TreeFactor):
        tree = factor.levels
        yield from ((f"{tree.digest}.{level}", parent) for level, parent in enumerate(tree.parents))
        yield from ((f"{key}.{level}", multiplier) for level, multiplier in enumerate(factor.multipliers))
        if factor.spread is not None:
            yield f"{key}.spread", factor.spread
    elif isinstance(factor, ToeplitzFactor):
        yield f"{key}.coefficients", factor.coefficients
        yield f"{key}.multipliers", factor.multipliers
    elif factor.matrix is not None:
        yield key, factor.matrix


def _describe(factor: Factor) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": factor.kind, "shape": list(factor.shape)}
    if isinstance(factor, NestedFactor):
        described["levels"] = [_describe(part) for part in factor.parts]
    if isinstance(factor, TreeFactor):
        described |= {"tree": factor.levels.digest, "depth": factor.levels.depth, "centred": factor.centred}
        described |= {"known": factor.known} if factor.known >= 0 else {}
        described["sha256"] = factor.digest

    if isinstance(factor, ToeplitzFactor):
        return described | {"sha256": factor.digest}  # its weights follow from its shape

    if factor.matrix is not None:
        described["sha256"] = factor.digest
    if factor.weights is not None:
        described["weights"] = [None if weight is None else list(weight) for weight in factor.weights]
    if factor.spaces is not None:
        described["spaces"] = [list(axes) for axes in factor.spaces]
    return described


def _factor(key: str, described: dict[str, Any], matrices: Mapping[str, Any]) -> Factor:
    weights = described.get("weights")
    own = None if weights is None else tuple(None if weight is None else tuple(weight) for weight in weights)
    spaces = described.get("spaces")
    axes_of = None if spaces is None else tuple(tuple(axes) for axes in spaces)
    shape, levels = tuple(described["shape"]), described.get("levels")
    factor: Factor

    if "tree" in described:
        factor = _tree_factor(key, described, matrices)
    elif described["kind"] == "toeplitz":
        integers = (matrices[f"{key}.coefficients"], matrices[f"{key}.multipliers"])
        factor = ToeplitzFactor("toeplitz", shape, None, (last_cell(*shape),), None, *integers)
    elif levels is None:
        factor = Factor(described["kind"], shape, matrices.get(key), own, axes_of)
    else:
        top, *inner = [_factor(f"{key}.{number}", level, matrices) for number, level in enumerate(levels)]
        factor = NestedFactor(described["kind"], shape, weights=own, top=top, inner=tuple(inner))

    if _describe(factor) != described:
        raise ValueError("a factor differs from its digest")
    return factor


def _tree_factor(key: str, described: Mapping[str, Any], arrays: Mapping[str, Any]) -> TreeFactor:
    depth = described["depth"]
    tree = Tree(tuple(arrays[f"{described['tree']}.{level}"] for level in range(depth)))
    own = tuple(arrays[f"{key}.{level}"] for level in range(depth + 1))
    spread = arrays[f"{key}.spread"] if described["centred"] else None
    shape, known = tuple(described["shape"]), described.get("known", -1)
    return TreeFactor(described["kind"], shape, tree=tree, multipliers=own, spread=spread, known=known)
