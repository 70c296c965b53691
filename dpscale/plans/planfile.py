"""Plans on disk: plan.json for what is measured, factors.npz for the integer matrices, both exact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.errors import JobError
from dpscale.plans.allocation import GAUSSIAN, LAPLACE
from dpscale.plans.block import Block
from dpscale.plans.factor import Factor
from dpscale.plans.nested import NestedFactor
from dpscale.plans.plan import Plan
from dpscale.storage.files import read_bytes, reading, write_whole, writing
from dpscale.workload import Workload

PLAN = "plan.json"
OLDER = "rho"  # what plans of adaptive mechanisms were charged by before Gaussian DP


def content_of(plan: Plan) -> dict[str, Any]:
    """plan.json of a plan: equal for the plan that was written and for the one that was read back."""
    factors = _numbered(plan)
    flat = {} if plan.stationary is None else {"stationary": plan.stationary, "floor": plan.floor}
    return flat | {
        "mechanism": plan.mechanism,
        "workload": plan.workload.digest,
        "error": plan.error,
        "bound": plan.bound,
        "notes": list(plan.notes),
        "factors": {key: _describe(factor) for key, factor in factors.values()},
        "blocks": [
            [list(b.attributes), [factors[id(factor)][0] for factor in b.factors], b.share, b.whole, b.noise]
            for b in plan.blocks
        ],
    }


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of plan.json, by which the ledger knows a plan: of what is drawn, whatever the file says by then."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _numbered(plan: Plan) -> dict[int, tuple[str, Factor]]:
    factors: dict[int, tuple[str, Factor]] = {}
    for block in plan.blocks:
        for factor in block.factors:
            factors.setdefault(id(factor), (f"f{len(factors)}", factor))
    return factors


def write_plan(folder: Path, plan: Plan) -> None:
    """Write a plan."""
    factors = _numbered(plan).values()
    matrices = {name: part.matrix for key, factor in factors for name, part in _parts(key, factor)
                if part.matrix is not None}  # fmt: skip
    with writing(folder / "factors.npz") as file:
        np.savez_compressed(file, allow_pickle=False, **matrices)
    write_content(folder, content_of(plan))


def write_content(folder: Path, content: Mapping[str, Any]) -> None:
    """Write plan.json, by whose hash the ledger knows a plan."""
    write_whole(folder / PLAN, json.dumps(content).encode())


def check_content(folder: Path, expected: Mapping[str, Any]) -> None:
    """JobError unless plan.json is what follows from the job."""
    try:
        content = json.loads(read_bytes(folder / PLAN))
    except (FileNotFoundError, ValueError):
        content = None
    if isinstance(content, dict) and OLDER in content and OLDER not in expected:
        raise JobError("run directory", f"the plan in {folder} was made by an older version of dpscale",
                       "a plan of this version", "what is in answers/ stands and costs nothing: read it there, or"
                       " open the run with that version")  # fmt: skip
    if content != expected:
        raise JobError("run directory", f"the plan in {folder} is not the job's", "the plan as it was made",
                       "start a new run")  # fmt: skip


def read_plan(folder: Path, workload: Workload) -> Plan:
    """Read a plan back for the workload that it was made for."""
    try:
        content = json.loads(read_bytes(folder / PLAN))
        with reading(folder / "factors.npz") as file, np.load(file, allow_pickle=False) as matrices:
            factors = {key: _factor(key, value, matrices) for key, value in content["factors"].items()}
    except (FileNotFoundError, ValueError, KeyError):
        raise JobError(
            "run directory", f"no whole plan in {folder}", "a planned run", "run `dpscale run` again"
        ) from None
    if content["workload"] != workload.digest:
        raise JobError(
            "run directory",
            "the workload changed since it was planned",
            "the files that it was planned with",
            "start a new run",
        )
    blocks = tuple(
        Block(tuple(names), tuple(factors[key] for key in keys), share, whole, noise)
        for names, keys, share, whole, noise in content["blocks"]
    )
    if not all(_fits(block, workload) for block in blocks):
        raise JobError("run directory", f"the plan in {folder} has a block that does not fit its attributes or noise",
                       "the plan as it was made", "start a new run")  # fmt: skip
    if not all(0 < block.share <= 1 for block in blocks):
        raise JobError("run directory", f"the plan in {folder} has a share outside (0, 1]", "the plan as it was made",
                       "start a new run")  # fmt: skip
    told = content["mechanism"], blocks, content["error"], content["bound"], tuple(content["notes"])
    return Plan(workload, *told, content.get("stationary"), content.get("floor", 0.0))


def _fits(block: Block, workload: Workload) -> bool:
    """Whether a block's factors are those of its attributes, and its noise one that there is."""
    domain, shapes = workload.domain, [size for factor in block.factors for size in factor.shape]
    known = all(name in domain.names for name in block.attributes)
    return (
        known
        and domain.ordered(block.attributes) == block.attributes
        and tuple(shapes) == domain.shape(block.attributes)
        and (block.joint or len(block.factors) == len(block.attributes))
        and block.noise in (GAUSSIAN, LAPLACE)
        and block.squared_l2_sensitivity > 0
    )


def _parts(key: str, factor: Factor) -> Iterator[tuple[str, Factor]]:
    """A factor, or the levels of a nested one, with names of their own."""
    if isinstance(factor, NestedFactor):
        yield from ((f"{key}.{number}", part) for number, part in enumerate(factor.parts))
    else:
        yield key, factor


def _describe(factor: Factor) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": factor.kind, "shape": list(factor.shape)}
    if isinstance(factor, NestedFactor):
        described["levels"] = [_describe(part) for part in factor.parts]
    if factor.matrix is not None:
        described["sha256"] = factor.digest
    if factor.weights is not None:
        described["weights"] = [None if own is None else list(own) for own in factor.weights]
    if factor.spaces is not None:
        described["spaces"] = [list(kept) for kept in factor.spaces]
    return described


def _factor(key: str, described: dict[str, Any], matrices: Mapping[str, Any]) -> Factor:
    weights = described.get("weights")
    own = None if weights is None else tuple(None if one is None else tuple(one) for one in weights)
    spaces = described.get("spaces")
    told = None if spaces is None else tuple(tuple(kept) for kept in spaces)
    shape, levels = tuple(described["shape"]), described.get("levels")
    if levels is None:
        factor = Factor(described["kind"], shape, matrices.get(key), own, told)
    else:
        top, *inner = [_factor(f"{key}.{number}", one, matrices) for number, one in enumerate(levels)]
        factor = NestedFactor(described["kind"], shape, weights=own, top=top, inner=tuple(inner))
    if _describe(factor) != described:
        raise ValueError("a factor differs from its digest")
    return factor
