"""Draws of a run according to its files: every draw with its integer strategy and its noise, and the selections.

Noise is read from the record of each measurement, not from the plan. A file without a decision and a missing
measurement are refused, so the list contains exactly the draws.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.audit.evidence.growing import (
    EventCounts,
    growing_table,
    horizon_costs,
    measured_tables,
    public_folders,
    time_fields,
)
from dpscale.audit.evidence.link_draws import check_links, link_component, refused, selected_costs
from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers
from dpscale.measurement import MeasurementStore
from dpscale.measurement.value_files import file_name, records, spans
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import Decision, MeasurementRequest
from dpscale.plans.nested import NestedFactor
from dpscale.plans.toeplitz import ToeplitzFactor
from dpscale.plans.tree import TreeFactor
from dpscale.privacy.draws import Draw, LaplaceDraw
from dpscale.privacy.selection import epsilon_below
from dpscale.privacy.streams import canonical
from dpscale.runs.charge import parts_of_entry
from dpscale.runs.links.measuring import stored_draws
from dpscale.runs.run import Run
from dpscale.storage.files import check_real, is_local, listed

SHOWN, MOST = 1 << 12, 1 << 23  # most entries of a matrix that is written as numbers, and compressed

Fields = dict[str, Any]
Names = Mapping[str, tuple[str, Fields]]


def draws_and_factors(run: Run) -> tuple[Fields, dict[str, Fields], EventCounts]:
    """Return draws.json, the distinct integer strategies that it names, and the costs according to the run."""
    _check_components(run)
    runs = measured_tables(run)
    decisions = {name: list(table.measurements.decisions()) for name, table in runs.items()}
    every = (one for own in decisions.values() for decision in own for one in decision.requests)
    names = _named(factor for request in every for factor in request.block.factors)
    tables = [_table(run, name, runs[name], own, names) for name, own in decisions.items()]
    check_links(run)
    content: Any = run.content
    parts = [*tables, *(link_component(run, piece, stored_draws(content, piece.link)) for piece in run.links)]
    listed = {"release": run.manifest["release"], "components": [component for component, _ in parts]}
    if (growing := growing_table(run)) is not None:
        costs = horizon_costs(growing, [costs for _, costs in parts])
        return listed | {"time": time_fields(growing)}, dict(names.values()), costs
    return listed, dict(names.values()), sum((costs for _, costs in parts), EventCounts())


def _check_components(run: Run) -> None:
    """Raise JobError for a part of another kind: its draws would be missing from the list."""
    known = {part.name for part in (*run.tables.values(), *run.joins.values())}
    known |= {f"links.{piece.link.called}" for piece in run.links}
    if other := next((name for name in parts_of_entry(run, "privacy") if name not in known), None):
        raise JobError("evidence", f"the part {other}", "tables, links, joins", "add it to dpscale/audit/evidence")


def folder_of(run: Run, part: Path) -> str:
    """Return the path of a part in the run directory, with a final slash; empty if it is the run."""
    return "".join(f"{name}/" for name in str(part).removeprefix(str(run.path)).split("/") if name)


def domain_file(run: Run, name: str) -> str:
    """Return the name of the domain file of a private table or of a join in the bundle."""
    own = {**run.tables, **{f"joins.{join}": one for join, one in run.joins.items()}}
    return f"domain.{name}.toml" if name in own and folder_of(run, own[name].path) else "domain.toml"


def _table(run: Run, name: str, table: Any, decisions: Sequence[Decision], names: Names) -> tuple[Fields, EventCounts]:
    """Return the component of a table, and the costs of its draws to a unit of the job."""
    steps = run.content.steps.get(name, 1)
    _check_names(table.measurements_path, [decision.round for decision in decisions])
    component = {
        "name": name,
        "kind": "table",
        "folder": folder_of(run, table.path),
        "domain": domain_file(run, name),
        "rows_per_unit": table.planning_problem.rows_per_unit,
        "steps": steps,
        "draws": [one for decision in decisions for one in _drawn(table.measurements, decision, names)],
        "selections": [one for decision in decisions for one in _selections(decision)],
    }
    costs, spent = EventCounts(), table.measurements.spent
    if spent.delta:
        component["delta"] = str(spent.delta)
        costs["delta", spent.for_group(steps).delta] += 1
    for request in (request for decision in decisions for request in decision.requests):
        kind = _kind(request.draw)
        costs[kind, request.draw.cost * (steps if kind == "laplace" else steps**2)] += 1
    return component, costs + selected_costs(component["selections"], steps)


def _kind(draw: Draw) -> str:
    return "laplace" if isinstance(draw, LaplaceDraw) else "gaussian"


def _check_names(folder: Path, rounds: Sequence[int]) -> None:
    """Raise JobError for a file of values that belongs to none of these rounds."""
    there = {name for name in listed(folder) if name.endswith(".parquet")}
    ours = {file_name(number, span) for number in rounds for span in spans(number, there)}
    if wrong := sorted(there - ours):
        raise refused(f"{wrong[0]} belongs to no decision")


def _drawn(released: MeasurementStore, decision: Decision, names: Names) -> Iterator[Fields]:
    """Yield the draws of a decision from their records, and check each record against its request."""
    requests, sequence, place = decision.requests, released.file_layout(decision).sequence.tolist(), 0
    for first, end in released.stored_spans(decision):
        name = file_name(decision.round, (first, end))
        if first != place:
            raise refused(f"{name} {'belongs to no decision' if first < place else 'follows a missing file'}")
        for record in records(released.folder / name):
            request = requests[sequence[place]] if place < min(end, len(sequence)) else None
            if request is None or canonical(record) != canonical(released.record(request)):
                raise refused(f"{name} has a record that differs from the request")
            yield _factor_record(record, request, names) | {"file": name, "place": place, "round": decision.round}
            place += 1
        if place != end:
            raise refused(f"{name} does not contain the draws in its name")
    if place != len(sequence):
        raise refused(f"draw {place} of round {decision.round} is missing")


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
    if isinstance(factor, TreeFactor):
        return fields | {
            "parents": [_packed(own) for own in factor.levels.parents],
            "multipliers": [_packed(own) for own in factor.multipliers],
            "spread": None if factor.spread is None else _packed(factor.spread),
            "known": factor.known,
        }
    if isinstance(factor, ToeplitzFactor):
        return fields | {"packed": _packed(np.concatenate([factor.coefficients, factor.multipliers]))}
    if factor.matrix is None:
        return fields
    if factor.matrix.size <= SHOWN:
        return fields | {"matrix": factor.matrix.tolist()}
    if factor.matrix.size <= MOST:
        return fields | {"packed": _packed(factor.matrix)}
    return fields | {"columns": _columns(factor)}


def _packed(values: Integers) -> str:
    compressed = zlib.compress(np.ascontiguousarray(values, dtype="<i8").tobytes(), 9)
    return base64.b64encode(compressed).decode()


def _columns(factor: Factor) -> Fields:
    squared, absolute = [], []
    for column in np.asarray(factor.matrix).T:
        values = column.astype(object)
        squared.append(str((values**2).sum()))
        absolute.append(str(abs(values).sum()))
    return {"sha256": factor.digest, "squared": squared, "absolute": absolute}


def file_hashes(run: Run, folders: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of the public files of a run: of some folders of all its runs, and of links."""
    paths = (one.path for one in (run, *run.tables.values(), *run.joins.values()))
    places = {f"{folder_of(run, path)}{name}" for path in paths for name in folders}
    places |= {*(f"links/{piece.link.called}" for piece in run.links), *public_folders(run)}
    found = sorted({str(path) for name in places for path in _files(run.path / name)})
    names = [path.removeprefix(f"{run.path}/") for path in found]
    return {name: _sha256(run.path / name) for name in names}


def _files(path: Path) -> list[Path]:
    if is_local(path):
        check_real(path)
    if path.is_dir():
        return [one for one in path.rglob("*") if one.is_file() and not one.name.endswith(".partial")]
    return [path] if path.exists() else []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
