"""Draws of a run according to its files: every draw with its integer strategy and its noise, and the selections.

Noise is read from the record of each measurement, not from the plan. A file without a decision and a missing
measurement are refused, so the list contains exactly the draws.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import JobError
from dpscale.measurement import MeasurementStore
from dpscale.measurement.value_files import file_name, records, spans
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import Decision, MeasurementRequest
from dpscale.plans.nested import NestedFactor
from dpscale.privacy.draws import Draw, LaplaceDraw
from dpscale.privacy.selection import epsilon_below
from dpscale.privacy.streams import canonical
from dpscale.runs.table import TableRun
from dpscale.storage.files import listed

SHOWN, MOST = 1 << 12, 1 << 23  # most entries of a matrix that is written as numbers, and compressed

Fields = dict[str, Any]
EventCounts = Counter[tuple[str, Fraction]]
Names = Mapping[str, tuple[str, Fields]]


def draws_and_factors(run: TableRun) -> tuple[Fields, dict[str, Fields], EventCounts]:
    """Return draws.json, the distinct integer strategies that it names, and the costs according to the run."""
    decisions = list(run.measurements.decisions())
    requests = [request for decision in decisions for request in decision.requests]
    _check_names(run.measurements_path, [decision.round for decision in decisions])
    names = _named(factor for request in requests for factor in request.block.factors)
    drawn = [one for decision in decisions for one in _drawn(run.measurements, decision, names)]
    listed = {"release": run.manifest["release"], "rows_per_unit": run.planning_problem.rows_per_unit, "draws": drawn,
              "selections": [one for decision in decisions for one in _selections(decision)]}  # fmt: skip
    costs = Counter((_kind(request.draw), request.draw.cost) for request in requests)
    for one in listed["selections"]:
        kind, cost = ("gaussian", one["mu_squared"]) if one["range"] is None else ("selection", one["range"])
        costs[kind, Fraction(cost)] += one["count"]
    return listed, dict(names.values()), costs


def _kind(draw: Draw) -> str:
    return "laplace" if isinstance(draw, LaplaceDraw) else "gaussian"


def _check_names(folder: Path, rounds: Sequence[int]) -> None:
    """Raise JobError for a file of values that belongs to none of these rounds."""
    there = {name for name in listed(folder) if name.endswith(".parquet")}
    ours = {file_name(number, span) for number in rounds for span in spans(number, there)}
    if wrong := sorted(there - ours):
        raise _refused(f"{wrong[0]} belongs to no decision")


def _drawn(released: MeasurementStore, decision: Decision, names: Names) -> Iterator[Fields]:
    """Yield the draws of a decision from their records, and check each record against its request."""
    requests, sequence, place = decision.requests, released.file_layout(decision).sequence.tolist(), 0
    for first, end in released.stored_spans(decision):
        name = file_name(decision.round, (first, end))
        if first != place:
            raise _refused(f"{name} {'belongs to no decision' if first < place else 'follows a missing file'}")
        for record in records(released.folder / name):
            request = requests[sequence[place]] if place < min(end, len(sequence)) else None
            if request is None or canonical(record) != canonical(released.record(request)):
                raise _refused(f"{name} has a record that differs from the request")
            yield _factor_record(record, request, names) | {"file": name, "place": place, "round": decision.round}
            place += 1
        if place != end:
            raise _refused(f"{name} does not contain the draws in its name")
    if place != len(sequence):
        raise _refused(f"draw {place} of round {decision.round} is missing")


def _factor_record(record: Fields, request: MeasurementRequest, names: Names) -> Fields:
    """Return a draw from its record."""
    block = request.block
    return {
        "attributes": list(block.attributes),
        "factors": [names[factor.digest][0] for factor in block.factors],
        "strategy": record.get("strategy"),
        "squared_l2": str(block.squared_l2_sensitivity),
        "l1": str(block.l1_sensitivity),
        "multiplier": str(record["multiplier"]),
        "variance": record.get("variance"),
        "laplace": record.get("laplace"),
    }


def _refused(got: str) -> JobError:
    return JobError("measurements", got, "the unmodified files of the run", "restore them")


def _selections(decision: Decision) -> Iterator[Fields]:
    """Yield the selections of a round; their total cost if it does not list single ones."""
    if not decision.selection_cost:
        return
    fields = decision.to_dict()
    beta, count = Fraction(fields.get("beta") or 0), len(fields.get("chosen") or ())
    if beta and beta * count == decision.selection_cost:
        yield {"round": decision.round, "count": count, "mu_squared": str(beta), "range": str(epsilon_below(beta))}
    else:
        yield {"round": decision.round, "count": 1, "mu_squared": str(decision.selection_cost), "range": None}


def _named(factors: Iterable[Factor]) -> dict[str, tuple[str, Fields]]:
    """Return each distinct strategy by digest: its name and its fields."""
    named: dict[str, tuple[str, Fields]] = {}
    for factor in factors:
        if factor.digest not in named:
            named[factor.digest] = f"f{len(named)}", _factor_fields(factor)
    return named


def _factor_fields(factor: Factor) -> Fields:
    """Return a strategy's integers: as numbers if small, compressed if large, as column norms if too large."""
    fields: Fields = {"kind": factor.kind, "shape": list(factor.shape)}
    if isinstance(factor, NestedFactor):
        return fields | {
            "levels": [_factor_fields(part) for part in factor.parts],
            "counts": [run.count for run in factor.runs],
        }
    if factor.matrix is None:
        return fields
    if factor.matrix.size <= SHOWN:
        return fields | {"matrix": factor.matrix.tolist()}
    if factor.matrix.size <= MOST:
        packed = zlib.compress(np.ascontiguousarray(factor.matrix, dtype="<i8").tobytes(), 9)
        return fields | {"packed": base64.b64encode(packed).decode()}
    return fields | {"columns": _columns(factor)}


def _columns(factor: Factor) -> Fields:
    squared, absolute = [], []
    for column in np.asarray(factor.matrix).T:
        values = column.astype(object)
        squared.append(str((values**2).sum()))
        absolute.append(str(abs(values).sum()))
    return {"sha256": factor.digest, "squared": squared, "absolute": absolute}


def file_hashes(run: TableRun, folders: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of every file in some folders of a run, by its path in the run directory."""
    found = sorted(str(path) for name in folders for path in _files(run.path / name))
    return {path.removeprefix(f"{run.path}/"): _sha256(run.path / path.removeprefix(f"{run.path}/")) for path in found}


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [one for one in path.rglob("*") if one.is_file() and not one.name.endswith(".partial")]
    return [path] if path.exists() else []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
