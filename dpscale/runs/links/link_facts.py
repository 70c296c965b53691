"""Public facts of a link that bound the effect of a unit on its draws, and the draws that its folder must have.

Neighbours differ in `moved` links. A histogram of degrees changes at each threshold up to the bound, once for every
role of the row, and by the rows at the other end. Sibling sums count each pair of siblings in every contingency table,
in steps of 2^-12. Steps count consecutive children, with weight 2 for an attribute with itself. Histories count parents
in a table of weight 3 and in one for each attribute.

A link adds vectors of features of squared norms U and V and their product; or, if rows are replaced, it replaces them
by others whose inner products are at least g and h. The three sums change together, so each kind of change bounds all
three of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError
from dpscale.job.allocation import LinkBudget
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.protection import REPLACE
from dpscale.privacy.selection import epsilon_below, scale_for
from dpscale.relational import assignment, published, rounding
from dpscale.relational.features import BITS, Features
from dpscale.runs.links.link_sampling import DRAWN
from dpscale.runs.links.measuring import ROUNDS, SUMS, LinkDraws
from dpscale.runs.run import DrawFacts, Journaled
from dpscale.runs.statement import Facts, alternatives, bound_of
from dpscale.storage.files import present, read_bytes

ROUND = "round"  # name of the bound of a marginal in a round of a published loop
SENSITIVITY = "exactly, from bounds of links and of the norms of features: parts.json"


def link_facts(piece: LinkBudget) -> Facts:
    """Return the facts of a link with its part of the budget, ready for JSON.

    The bounds of its sums of features are missing here, because they are planned from released values. A link with
    `loops` chooses marginals in rounds.
    """
    return {
        "bounds": link_bounds(piece),
        "contribution": f"neighbours differ in at most {piece.moved} links",
        "law": "gaussian",
        "mechanism": piece.link.mechanism,
        **({"selected": ROUND} if piece.loops else {}),
        "post_processing": "sampled links: from released values alone",
        "sensitivity": SENSITIVITY,
        "steps": 1,
    }


def link_bounds(piece: LinkBudget) -> dict[str, Facts]:
    """Return the bounds of the draws that do not depend on released values, by name."""
    return dict(_bounds(piece))


def _bounds(piece: LinkBudget) -> Iterator[tuple[str, Facts]]:
    """Yield the name of each draw of a link and the bound of the effect of one unit on its exact counts.

    A bound is a pair (n, c): n counts change by at most c each, so their squared L2 change is at most n c². Weighted
    tables are written as more counts: a count of weight w is w² counts.

    `places` has the thresholds of the degree histogram of each side, and `roles` is the number of roles in which a row
    can be an end of a link.
    """
    relation, bound = piece.neighbours.protects.relation, piece.link.bound
    parents = piece.neighbours.rows.get(piece.link.parent, 1)  # most parents of one unit
    child = piece.sizes(piece.link.child)  # number of cells of each attribute of the child
    attributes = len(child)

    if piece.counted:
        yield "links", bound_of((1, piece.moved), values=1)
    if piece.degrees:  # the parent changes the counts of up to `bound` degrees, the rows at the other end `others`
        places, roles = piece.places, piece.roles
        others = 2 * bound**2 if relation == REPLACE else bound**2 * (len(places) - 1)
        yield "degrees", bound_of((bound + others, roles), values=sum(map(len, places)))
    if piece.siblings:
        tables = assignment.PairTables(child)
        pairs = attributes * (attributes + 1) // 2  # a table for each two attributes, and for each with itself
        yield "siblings", bound_of((pairs, parents * bound * 2**BITS), values=int(tables.starts[-1]))
    if (history := piece.history) is not None:
        steps = attributes * (attributes - 1) + attributes * 2**2  # an attribute with itself has weight 2
        yield "steps", bound_of((steps, parents * (bound - 1)), values=int(history.starts[-1]))
        tables_of_parents = attributes + 3**2  # one for each attribute, and one of weight 3
        values = sum(rows * columns for rows, columns in history.shapes)
        yield "histories", bound_of((tables_of_parents, parents), values=values)
    if piece.loops:
        yield ROUND, bound_of((published.moved_entries(relation), piece.moved))


def sum_bounds(relation: str, u: Features, v: Features, moved: int) -> Mapping[str, Facts]:
    """Return the bounds of the three sums of features, with the same kinds of changes in each.

    Parameters
    ----------
    relation : str
    u, v : Features
        Features of both ends.
    moved : int
        Number of links that a neighbour changes.

    Returns
    -------
    mapping of str to dict
        For each sum its alternative changes: the squared norm by which one link changes it. If features of squared norm
        at most U are replaced by others with an inner product of at least g, their difference has the squared norm
        |x - y|² ≤ 2 (U - g). A replaced link changes the parent's end, the child's end, or both.
    """
    added = u.squared, v.squared, u.squared * v.squared
    kinds = [added]  # squared changes of the three sums, by kind
    if relation == REPLACE:
        # U − g of the parent's end, of the child's, and of their product
        first, second = u.squared - u.least, v.squared - v.least
        both = u.squared * v.squared - u.least * v.least
        kinds += [(2 * first, 0, 2 * v.squared * first), (0, 2 * second, 2 * u.squared * second),
                  (2 * first, 2 * second, 2 * both)]  # fmt: skip

    widths = len(u.attributes), len(v.attributes)
    values = *widths, widths[0] * widths[1]  # of each sum
    bounds = {}
    for at, name in enumerate(SUMS):
        bounds[name] = alternatives([[(kind[at], moved)] for kind in kinds], values[at])
    return bounds


def planned_features(piece: LinkBudget, clips: Sequence[float | None] = (None, None)) -> tuple[Features, Features]:
    """Return the features of both ends without public shares, clipped to some norms."""
    ends = piece.link.parent, piece.link.child
    u, v = (Features(piece.sizes(end), (), clip) for end, clip in zip(ends, clips, strict=True))
    return u, v


def draw_name(label: Mapping[str, Any]) -> str:
    """Return the name of a draw of a link, given its label."""
    return str(label["query"]["sum"])


def stored_draws_of(piece: LinkBudget, folder: Path) -> Journaled:
    """Return the draws that the folder of a link must have: of its budget, of its rounds, and the planned sums.

    A loop chooses marginals in rounds, each in a file with its selection; ROUNDS has the number of rounds if the job
    leaves it open, and DRAWN the sampled links. Without a loop, sums are planned from released values (shares.json).
    """
    bounds = link_bounds(piece)
    draws = {name: DrawFacts(name, bound.get("values")) for name, bound in bounds.items() if name != ROUND}
    if piece.loops:
        loop = _loop(piece, folder)
        rounds = _chosen(loop, folder)
        files = [f"{ROUND}-{number:02d}.json" for number in range(len(rounds))]
        files += [] if piece.link.rounds else [ROUNDS]
        selections = list(_selections(piece, loop, rounds))
        return Journaled(
            entry="privacy",
            folder=folder,
            name=draw_name,
            draws=draws | _round_draws(piece, rounds),
            selections=selections,
            others=[*files, DRAWN],
        )
    if piece.modelled:
        draws |= _planned_sums(piece, folder)
    return Journaled(
        entry="privacy", folder=folder, name=draw_name, draws=draws, selections=(), others=["shares.json", DRAWN]
    )


def _planned_sums(piece: LinkBudget, folder: Path) -> dict[str, DrawFacts]:
    """Return the sums of features that were planned from released values; all of them change together.

    A sum with the precision 0 was not drawn.
    """
    if not present(folder / "shares.json"):
        raise JobError("measurements", f"shares.json of link {piece.link.called} is missing",
                       "the unmodified files of the run", "restore them")  # fmt: skip
    stored = json.loads(read_bytes(folder / "shares.json"))
    features = planned_features(piece, stored["clips"])
    bounds = sum_bounds(piece.neighbours.protects.relation, *features, piece.moved)
    drawn = [name for name, precision in zip(SUMS, stored["precisions"], strict=True) if precision > 0]
    return {name: DrawFacts({"changes": bounds[name]["changes"]}, bounds[name]["values"], group=piece.link.called)
            for name in drawn}  # fmt: skip


def _loop(piece: LinkBudget, folder: Path) -> published.Rounds:
    """Return the options of a published loop, with the number of rounds that the job states or the run chose."""
    loop = piece.link.loop
    if piece.link.rounds is None and present(folder / ROUNDS):
        return replace(loop, rounds=int(json.loads(read_bytes(folder / ROUNDS))))
    return loop


def _chosen(loop: published.Rounds, folder: Path) -> list[list[int]]:
    """Return the numbers of the marginals that each finished round of a published loop selected."""
    selected = list[list[int]]()
    for number in range(loop.rounds):
        file = folder / f"{ROUND}-{number:02d}.json"
        if not present(file):
            break
        selected.append(json.loads(read_bytes(file)))
    return selected


def _round_draws(piece: LinkBudget, rounds: Sequence[Sequence[int]]) -> dict[str, DrawFacts]:
    """Return the facts of the noisy marginals of each round of a published loop: numbers of values and of marginals.

    `rounds` has the selected marginals of each round, by their numbers; marginal k has cells[k] values.
    """
    sizes = (piece.sizes(piece.link.parent), piece.sizes(piece.link.child))
    cells = rounding.marginal_cells(*sizes, piece.link.loop.order)
    draws = dict[str, DrawFacts]()
    for number, chosen in enumerate(rounds):
        values = sum(cells[k] for k in chosen)
        draws[f"{ROUND}-{number:02d}"] = DrawFacts(ROUND, values, len(chosen))
    return draws


def _selections(piece: LinkBudget, loop: published.Rounds, rounds: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    """Yield the facts of the selection of each round: the draw that chooses which marginals the next draw measures.

    The scale of the exponential mechanism follows from its cost and the sensitivity of a score, which is an integer in
    steps of 1/SCALE.
    """
    cost, _ = loop.costs(piece.parts.sums)
    sensitivity = SCALE * published.moved_entries(piece.neighbours.protects.relation) * piece.moved
    common = {"bound": ROUND, "cost": str(cost), "range": str(epsilon_below(cost)),
              "scale": str(scale_for(cost, sensitivity)), "scores": SCALE}  # fmt: skip
    for number, chosen in enumerate(rounds):
        decision = LinkDraws.number(f"selection-{number:02d}")
        yield {"decision": decision, "chooses": decision + 1, "count": len(chosen), **common}
