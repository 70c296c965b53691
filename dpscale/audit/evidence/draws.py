"""Draws of a run according to its files: every draw with its integer strategy and its noise, and the selections.

Noise is read from the record of each measurement, not from the plan. A file without a decision and a missing
measurement are refused, so the list contains exactly the draws.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.audit.evidence.growing import EventCounts, horizon_costs, measured_tables, public_folders, time_fields
from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers
from dpscale.measurement import MeasurementStore
from dpscale.measurement.measurement import LinkRecords, draw_of_precision
from dpscale.measurement.value_files import file_name, records, spans
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import SCALE, Decision, MeasurementRequest
from dpscale.plans.nested import NestedFactor
from dpscale.plans.tree_factor import TreeFactor
from dpscale.privacy.draws import Draw, GaussianDraw, LaplaceDraw, gaussian_draw
from dpscale.privacy.selection import epsilon_below, scale_for
from dpscale.privacy.streams import canonical
from dpscale.relational import assignment, budget_shares, features, published, rounding
from dpscale.runs.directory import Run
from dpscale.runs.links import budget, link_sampling, measuring
from dpscale.runs.periods.stream import StreamRun
from dpscale.storage.files import listed, read_bytes

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
    _check_links(run)
    parts = [*tables, *(_link(run, piece) for piece in run.links)]
    listed = {"release": run.manifest["release"], "components": [component for component, _ in parts]}
    if isinstance(run, StreamRun):
        costs = horizon_costs(run, [costs for _, costs in parts])
        return listed | {"time": time_fields(run)}, dict(names.values()), costs
    return listed, dict(names.values()), sum((costs for _, costs in parts), EventCounts())


def _check_components(run: Run) -> None:
    """Raise JobError for a component of another kind: its draws would be missing from the list."""
    tables = {"tables": run.tables, "joins": run.joins, "links": [piece.link.called for piece in run.links]}
    known = {f"{kind}.{name}" for kind, names in tables.items() for name in names}
    if other := next((name for name in run.components() if name not in known), None):
        raise JobError("evidence", f"the component {other}", "tables, links, joins", "add it to dpscale/audit/evidence")


def folder_of(run: Run, part: Path) -> str:
    """Return the path of a part in the run directory, with a final slash; empty if it is the run."""
    return "".join(f"{name}/" for name in str(part).removeprefix(str(run.path)).split("/") if name)


def domain_file(run: Run, name: str) -> str:
    """Return the name of the domain file of a private table or of a join in the bundle."""
    own = {**run.tables, **{f"joins.{join}": one for join, one in run.joins.items()}}
    return f"domain.{name}.toml" if name in own and folder_of(run, own[name].path) else "domain.toml"


def _table(run: Run, name: str, table: Any, decisions: Sequence[Decision], names: Names) -> tuple[Fields, EventCounts]:
    """Return the component of a table, and the costs of its draws to a unit of the job."""
    steps = run.steps.get(name, 1)
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
    return component, costs + _selected(component["selections"], steps)


def _selected(selections: Sequence[Fields], steps: int) -> EventCounts:
    """Return the costs of selections to a unit of the job."""
    costs = EventCounts()
    for one in selections:
        if one["range"] is None:
            costs["gaussian", Fraction(one["mu_squared"]) * steps**2] += one["count"]
        else:
            costs["selection", Fraction(one["range"]) * steps] += one["count"]
    return costs


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
    if isinstance(factor, TreeFactor):
        return fields | {
            "parents": [_packed(own) for own in factor.levels.parents],
            "multipliers": [_packed(own) for own in factor.multipliers],
            "spread": None if factor.spread is None else _packed(factor.spread),
            "known": factor.known,
        }
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


# ---- links -----------------------------------------------------------------------------------------------------------


def _check_links(run: Run) -> None:
    """Raise JobError for a folder of measurements that belongs to no link."""
    if wrong := sorted(set(listed(run.path / "links")) - {piece.link.called for piece in run.links}):
        raise _refused(f"links/{wrong[0]} belongs to no link")


def _link(run: Run, piece: budget.LinkBudget) -> tuple[Fields, EventCounts]:
    """Return the component of a link, with the public numbers that determine its sensitivities, and its costs.

    The files of a link contain values without records of their noise. The noise is that of the budget, as the run
    computes it; the values must be multiples of its lattice.
    """
    link, manifest, neighbours = piece.link, run.manifest, piece.neighbours
    folder = run.path / "links" / link.called
    stored = LinkRecords(folder, manifest["release"], str(manifest["snapshot"]), link.called)
    sizes = [list(piece.sizes(end)) for end in (link.parent, link.child)]
    shares, rounds = (None, _chosen(stored, piece)) if piece.loops else (_planned(stored, sizes), [])
    measured = [*_histograms(piece, sizes), *_sums(piece, shares), *_rounds(piece, rounds, sizes)]
    wanted = {one.fields["file"] for one in measured}
    wanted |= {f"{_round(number)}.json" for number in range(len(rounds))} if piece.loops else {"shares.json"}
    if wrong := sorted(wanted.symmetric_difference(set(listed(folder)) - {link_sampling.DRAWN})):
        what = "is missing" if wrong[0] in wanted else "belongs to no draw"
        raise _refused(f"{wrong[0]} of link {link.called} {what}")
    for one in measured:
        _check_lattice(stored, one)
    component: Fields = {
        "name": link.called,
        "kind": "link",
        "folder": folder_of(run, folder),
        "relation": neighbours.protects.relation,
        "moved": piece.moved,
        "bound": link.bound,
        "parents": neighbours.rows.get(link.parent, 1),
        "roles": piece.roles,
        "histograms": [len(one) for one in piece.places] if piece.degrees else [],
        "sizes": sizes,
        "clips": [shares.u.clip, shares.v.clip] if shares else None,
        "precisions": list(shares.precisions) if shares else None,
        "loop": {"rounds": link.loop.rounds, "marginals": link.loop.each, "alpha": link.loop.alpha}
        if piece.loops else None,
        "draws": [one.fields for one in measured],
        "selections": list(_link_selections(piece, rounds)),
    }  # fmt: skip
    costs = EventCounts()
    for one in measured:
        if one.name not in measuring.SUMS:
            costs["gaussian", one.draw.cost] += one.count
    if (sums := {one.name: one.draw.cost for one in measured if one.name in measuring.SUMS}) and shares:
        costs["gaussian", _sums_cost(piece, shares, [sums.get(name, Fraction(0)) for name in measuring.SUMS])] += 1
    return component, costs + _selected(component["selections"], 1)


@dataclass(frozen=True)
class _LinkDraw:
    """A draw of a link: statistic, noise, squared sensitivity, and numbers of values and of marginals."""

    name: str
    draw: GaussianDraw
    squared: int | Fraction
    values: int
    count: int = 1

    @property
    def fields(self) -> Fields:
        noise = {"multiplier": str(self.draw.multiplier), "variance": str(self.draw.variance)}
        return {"statistic": self.name, "file": f"{self.name}.npy", "count": self.count,
                "squared_l2": str(self.squared), **noise}  # fmt: skip


def _histograms(piece: budget.LinkBudget, sizes: Sequence[Sequence[int]]) -> Iterator[_LinkDraw]:
    """Yield the number of links, the degree histograms and the sibling sums, each if it is measured."""
    tables, parents = assignment.PairTables(tuple(sizes[1])), piece.neighbours.rows.get(piece.link.parent, 1)
    if piece.counted:
        yield _LinkDraw("links", piece.links_draw(), piece.moved**2, 1)
    if piece.degrees:
        relation, bound = piece.neighbours.protects.relation, piece.link.bound
        squared = budget_shares.degrees_squared(relation, bound, piece.roles, len(piece.places))
        yield _LinkDraw("degrees", piece.degrees_draw(), squared, sum(map(len, piece.places)))
    if piece.siblings:
        squared = tables.squared(piece.link.bound, parents)
        yield _LinkDraw("siblings", piece.siblings_draw(tables), squared, int(tables.starts[-1]))


def _sums(piece: budget.LinkBudget, shares: budget_shares.Shares | None) -> Iterator[_LinkDraw]:
    """Yield the measured sums of features; the squared sensitivity of each is that of the sum alone."""
    if shares is None:
        return
    widths = len(shares.u.attributes), len(shares.v.attributes)
    values = dict(zip(measuring.SUMS, (*widths, widths[0] * widths[1]), strict=True))
    for at, (name, precision) in enumerate(zip(measuring.SUMS, budget_shares.precisions_in_steps(shares), strict=True)):
        if precision > 0:
            alone = tuple(Fraction(int(at == other)) for other in range(len(measuring.SUMS)))
            draw = draw_of_precision(precision, f"link {piece.link.called}")
            yield _LinkDraw(name, draw, _sums_cost(piece, shares, alone), values[name])


def _sums_cost(piece: budget.LinkBudget, shares: budget_shares.Shares, precisions: Sequence[Fraction]) -> Fraction:
    u, v, both = precisions
    return budget_shares.sums_cost(piece.neighbours.protects.relation, shares, (u, v, both), piece.moved)


def _planned(stored: LinkRecords, sizes: Sequence[Sequence[int]]) -> budget_shares.Shares:
    """Return the stored shares of a link; the cost depends on clipping bounds and numbers of cells only."""
    shares = json.loads(read_bytes(stored.folder / "shares.json"))
    u, v = (features.Features(tuple(own), (), clip) for own, clip in zip(sizes, shares["clips"], strict=True))
    return budget_shares.Shares(u, v, tuple(shares["precisions"]), shares["expected"])


def _round(number: int) -> str:
    return f"round-{number:02d}"


def _chosen(stored: LinkRecords, piece: budget.LinkBudget) -> list[list[int]]:
    """Return the marginals that the rounds of a published loop selected."""
    found = list[list[int]]()
    while len(found) < piece.link.loop.rounds and f"{_round(len(found))}.json" in listed(stored.folder):
        found.append(json.loads(read_bytes(stored.folder / f"{_round(len(found))}.json")))
    return found


def _rounds(
    piece: budget.LinkBudget, rounds: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
) -> Iterator[_LinkDraw]:
    """Yield the noisy marginals of each round of a published loop."""
    if not rounds:
        return
    cross = rounding.Cross.of(*(features.Side.made(np.zeros((1, len(own)), np.int64), own) for own in sizes))
    changed = published.moved_entries(piece.neighbours.protects.relation)
    noise = piece.link.loop.costs(piece.parts.sums)[1]
    draw = gaussian_draw(changed, noise, piece.moved, f"link {piece.link.called}")
    for number, chosen in enumerate(rounds):
        values = sum(int(cross.starts[k + 1] - cross.starts[k]) for k in chosen)
        yield _LinkDraw(_round(number), draw, changed * piece.moved**2, values, len(chosen))


def _link_selections(piece: budget.LinkBudget, rounds: Sequence[Sequence[int]]) -> Iterator[Fields]:
    """Yield the selections of each round of a published loop, with the scale and the sensitivity of their scores."""
    if not rounds:
        return
    cost = piece.link.loop.costs(piece.parts.sums)[0]
    sensitivity = SCALE * published.moved_entries(piece.neighbours.protects.relation) * piece.moved
    fields = {"mu_squared": str(cost), "range": str(epsilon_below(cost)), "sensitivity": sensitivity,
              "scale": str(scale_for(cost, sensitivity))}  # fmt: skip
    yield from ({"round": number, "count": len(chosen)} | fields for number, chosen in enumerate(rounds))


def _check_lattice(stored: LinkRecords, drawn: _LinkDraw) -> None:
    """Raise JobError if stored values are not as many as the draw has, or not multiples of its lattice."""
    values = stored.measured(drawn.name)
    if values is None or values.size != drawn.values or not (values * drawn.draw.multiplier % 1 == 0).all():
        raise _refused(f"{drawn.name}.npy of link {stored.link} has values that differ from its draw")


def file_hashes(run: Run, folders: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of the public files of a run: of some folders of all its runs, and of links."""
    paths = (one.path for one in (run, *run.tables.values(), *run.joins.values()))
    places = {f"{folder_of(run, path)}{name}" for path in paths for name in folders}
    places |= {*(f"links/{piece.link.called}" for piece in run.links), *public_folders(run)}
    found = sorted({str(path) for name in places for path in _files(run.path / name)})
    names = [path.removeprefix(f"{run.path}/") for path in found]
    return {name: _sha256(run.path / name) for name in names}


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [one for one in path.rglob("*") if one.is_file() and not one.name.endswith(".partial")]
    return [path] if path.exists() else []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
