"""Draws of links according to the files of a run, with the public numbers that determine their sensitivities."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.audit.evidence.growing import EventCounts
from dpscale.base.errors import JobError
from dpscale.job.allocation import FILE, LinkBudget
from dpscale.measurement.measurement import draw_of_precision
from dpscale.measurement.value_files import file_name
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.privacy.selection import epsilon_below, scale_for
from dpscale.relational import assignment, budget_shares, features, published, rounding
from dpscale.relational.degrees import bucket_starts
from dpscale.relational.features import Features
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links import link_sampling
from dpscale.runs.links.first_measurement import FirstMeasurement, job_of_public_cells
from dpscale.runs.links.link_draws import SUMS, LinkDraws
from dpscale.runs.run import Run
from dpscale.storage.files import listed, read_bytes

Fields = dict[str, Any]


def refused(got: str) -> JobError:
    return JobError("measurements", got, "the unmodified files of the run", "restore them")


def selected_costs(selections: Sequence[Fields], steps: int) -> EventCounts:
    """Return the costs of selections to a unit of the job."""
    costs = EventCounts()
    for one in selections:
        if one["range"] is None:
            costs["gaussian", Fraction(one["mu_squared"]) * steps**2] += one["count"]
        else:
            costs["selection", Fraction(one["range"]) * steps] += one["count"]
    return costs


def check_links(run: Run) -> None:
    """Raise JobError for a folder of measurements that belongs to no link."""
    if wrong := sorted(set(listed(run.path / "links")) - {piece.link.called for piece in run.links}):
        raise refused(f"links/{wrong[0]} belongs to no link")


def link_component(run: Run, piece: LinkBudget, stored: LinkDraws) -> tuple[Fields, EventCounts]:
    """Return the component of a link, with the public numbers that determine its sensitivities, and its costs.

    The noise is that of the budget, as the run computes it; the values must be multiples of its lattice.
    """
    link, neighbours, folder = piece.link, piece.neighbours, stored.folder
    sizes = [list(piece.sizes(end)) for end in (link.parent, link.child)]
    rounds = _chosen(stored, piece) if piece.loops else []
    shares = _planned(stored, sizes) if piece.modelled and not piece.loops else None
    measured = [*_histograms(piece, sizes), *_sums(piece, shares), *_rounds(piece, rounds, sizes)]
    wanted = {one.fields["file"] for one in measured}
    wanted |= {f"{_round(number)}.json" for number in range(len(rounds))}
    wanted |= {"shares.json"} if shares else set()
    if wrong := sorted(wanted.symmetric_difference(set(listed(folder)) - {link_sampling.DRAWN})):
        what = "is missing" if wrong[0] in wanted else "belongs to no draw"
        raise refused(f"{wrong[0]} of link {link.called} {what}")
    for one in measured:
        check_lattice(stored, one)
    component: Fields = {
        "name": link.called,
        "kind": "link",
        "folder": f"{folder.relative_to(run.path)}/",
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
        if one.name not in SUMS:
            costs["gaussian", one.draw.cost] += one.count
    if (sums := {one.name: one.draw.cost for one in measured if one.name in SUMS}) and shares:
        costs["gaussian", _sums_cost(piece, shares, [sums.get(name, Fraction(0)) for name in SUMS])] += 1
    return component, costs + selected_costs(component["selections"], 1)


def file_of(name: str) -> str:
    """Return the value file of a draw."""
    return file_name(LinkDraws.number(name), (0, 1))


@dataclass(frozen=True)
class LinkDraw:
    """A draw of a link: statistic, noise, squared sensitivity, and numbers of values and of marginals."""

    name: str
    draw: GaussianDraw
    squared: int | Fraction
    values: int
    count: int = 1

    @property
    def fields(self) -> Fields:
        noise = {"multiplier": str(self.draw.multiplier), "variance": str(self.draw.variance)}
        return {"statistic": self.name, "file": file_of(self.name), "count": self.count,
                "squared_l2": str(self.squared), **noise}  # fmt: skip


def _histograms(piece: LinkBudget, sizes: Sequence[Sequence[int]]) -> Iterator[LinkDraw]:
    """Yield the number of links, the degree histograms and the sibling sums, each if it is measured."""
    tables, parents = assignment.PairTables(tuple(sizes[1])), piece.neighbours.rows.get(piece.link.parent, 1)
    if piece.counted:
        yield LinkDraw("links", piece.links_draw(), piece.moved**2, 1)
    if piece.degrees:
        relation, bound = piece.neighbours.protects.relation, piece.link.bound
        squared = budget_shares.degrees_squared(relation, bound, piece.roles, len(piece.places))
        yield LinkDraw("degrees", piece.degrees_draw(), squared, sum(map(len, piece.places)))
    if piece.siblings:
        squared = tables.squared(piece.link.bound, parents)
        yield LinkDraw("siblings", piece.siblings_draw(tables), squared, int(tables.starts[-1]))
    if (history := piece.history) is not None:
        yield LinkDraw("steps", piece.steps_draw(history), history.steps_squared(parents), int(history.starts[-1]))
        values = sum(a * b for a, b in history.shapes)
        yield LinkDraw("histories", piece.parents_draw(history), history.parents_squared(parents), values)


def _sums(piece: LinkBudget, shares: budget_shares.Shares | None) -> Iterator[LinkDraw]:
    """Yield the measured sums of features; the squared sensitivity of each is that of the sum alone."""
    if shares is None:
        return
    widths = len(shares.u.attributes), len(shares.v.attributes)
    values = dict(zip(SUMS, (*widths, widths[0] * widths[1]), strict=True))
    for at, (name, precision) in enumerate(zip(SUMS, budget_shares.precisions_in_steps(shares), strict=True)):
        if precision > 0:
            alone = tuple(Fraction(int(at == other)) for other in range(len(SUMS)))
            draw = draw_of_precision(precision, f"link {piece.link.called}")
            yield LinkDraw(name, draw, _sums_cost(piece, shares, alone), values[name])


def _sums_cost(piece: LinkBudget, shares: budget_shares.Shares, precisions: Sequence[Fraction]) -> Fraction:
    u, v, both = precisions
    return budget_shares.sums_cost(piece.neighbours.protects.relation, shares, (u, v, both), piece.moved)


def _planned(stored: LinkDraws, sizes: Sequence[Sequence[int]]) -> budget_shares.Shares:
    """Return the stored shares of a link; the cost depends on clipping bounds and numbers of cells only."""
    shares = json.loads(read_bytes(stored.folder / "shares.json"))
    u, v = (features.Features(tuple(own), (), clip) for own, clip in zip(sizes, shares["clips"], strict=True))
    return budget_shares.Shares(u, v, tuple(shares["precisions"]), shares["expected"])


def _round(number: int) -> str:
    return f"round-{number:02d}"


def _chosen(stored: LinkDraws, piece: LinkBudget) -> list[list[int]]:
    """Return the marginals that the rounds of a published loop selected."""
    found = list[list[int]]()
    while len(found) < piece.link.loop.rounds and f"{_round(len(found))}.json" in listed(stored.folder):
        found.append(json.loads(read_bytes(stored.folder / f"{_round(len(found))}.json")))
    return found


def _rounds(piece: LinkBudget, rounds: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> Iterator[LinkDraw]:
    """Yield the noisy marginals of each round of a published loop."""
    if not rounds:
        return
    cross = rounding.Cross.of(*(features.Side.made(np.zeros((1, len(own)), np.int64), own) for own in sizes))
    changed = published.moved_entries(piece.neighbours.protects.relation)
    noise = piece.link.loop.costs(piece.parts.sums)[1]
    draw = gaussian_draw(changed, noise, piece.moved, f"link {piece.link.called}")
    for number, chosen in enumerate(rounds):
        values = sum(int(cross.starts[k + 1] - cross.starts[k]) for k in chosen)
        yield LinkDraw(_round(number), draw, changed * piece.moved**2, values, len(chosen))


def _link_selections(piece: LinkBudget, rounds: Sequence[Sequence[int]]) -> Iterator[Fields]:
    """Yield the selections of each round of a published loop, with the scale and the sensitivity of their scores."""
    if not rounds:
        return
    cost = piece.link.loop.costs(piece.parts.sums)[0]
    sensitivity = SCALE * published.moved_entries(piece.neighbours.protects.relation) * piece.moved
    fields = {"mu_squared": str(cost), "range": str(epsilon_below(cost)), "sensitivity": sensitivity,
              "scale": str(scale_for(cost, sensitivity))}  # fmt: skip
    yield from ({"round": number, "count": len(chosen)} | fields for number, chosen in enumerate(rounds))


def check_lattice(stored: LinkDraws, drawn: LinkDraw) -> None:
    """Raise JobError if stored values are not as many as the draw has, or not multiples of its lattice."""
    values = stored.measured(drawn.name)
    if values is None or values.size != drawn.values or not (values * drawn.draw.multiplier % 1 == 0).all():
        raise refused(f"{file_of(drawn.name)} of link {stored.name} has values that differ from its draw")


def is_allocated(run: Run) -> bool:
    """Return whether a run has a first measurement."""
    return isinstance(run.content, LinkedTables) and run.content.allocation is not None


def first_draws(run: Run) -> Fields:
    """Return the content of allocation.json of a bundle: the draws of the first measurement, and the shares.

    `components` are links as in draws.json, in their order. `tables` are those whose rows are counted: name, rows of a
    unit, numbers of cells, and two draws. `degrees` are histograms of degrees before the bound: the link, rows of a
    unit among its parents, and the draw. Raises JobError for values that differ from their draws.
    """
    assert isinstance(run.content, LinkedTables)
    first = FirstMeasurement(run.content, job_of_public_cells(run.job))
    links = [link_component(run, first.piece(link), first.draws(f"links.{link.called}", link.called))[0]
             for link in first.job.link]  # fmt: skip
    return {"components": links, "tables": list(_tables(first)), "degrees": list(_degrees(first)),
            "shares": dict(run.job.shares),
            "sha256": hashlib.sha256(read_bytes(run.path / FILE)).hexdigest()}  # fmt: skip


def _tables(first: FirstMeasurement) -> Iterator[Fields]:
    for name in first.roots:
        sizes, rows = first.divisible.sizes(name), first.divisible.unit_rows(name)
        squared = Features(sizes, (), None).squared
        columns = len(Features(sizes, (), None).attributes)
        draws = [LinkDraw("rows", first.rows_draw(name), rows**2, 1),
                 LinkDraw("ones", first.ones_draw(name), rows**2 * squared, columns)]  # fmt: skip
        stored = first.draws(f"tables.{name}", f"table {name}")
        for one in draws:
            check_lattice(stored, one)
        yield {"name": name, "rows_per_unit": rows, "sizes": list(sizes), "draws": [one.fields for one in draws]}


def _degrees(first: FirstMeasurement) -> Iterator[Fields]:
    for link in first.bounded_links:
        rows = first.neighbours.rows[link.parent]
        draw = LinkDraw("degrees", first.degrees_draw(link), rows**2, len(bucket_starts()))
        check_lattice(first.draws(f"degrees.{link.called}", f"degrees of {link.called}"), draw)
        yield {"name": link.called, "rows_per_unit": rows, "draws": [draw.fields]}
