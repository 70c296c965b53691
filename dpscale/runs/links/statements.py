"""Sentences of the report of several tables. Each depends on the measurements of a link, or on the job."""

from __future__ import annotations

import math
from typing import Any

from dpscale.base.display import figure
from dpscale.job.allocation import LOSES
from dpscale.job.sections import LinkSection
from dpscale.job.table_sizes import required_links, stated_rows
from dpscale.relational.assignment import MOST_WORDS
from dpscale.relational.budget_shares import MOST_SIBLINGS
from dpscale.relational.rounding import count_words
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.measuring import piece_of, stored_draws
from dpscale.runs.links.row_limits import describe_rows
from dpscale.storage.files import listed, present

SURE, MANY = 2.0, 0.1  # standard errors, and the share of rows at the bound from which a warning is given


def reproduced(run: LinkedTables, link: LinkSection, rows: int) -> list[str]:
    """Return the properties that the synthetic links reproduce, because they were measured.

    Parameters
    ----------
    run : LinkedTables
    link : LinkSection
    rows : int
        Number of synthetic rows of the parent and of the child.

    Returns
    -------
    list of str
    """
    draws = stored_draws(run, link)
    folder = draws.folder
    found = []
    if draws.has("degrees"):
        sides = [link.parent] if link.via is None else list(dict.fromkeys((link.parent, link.child)))
        found.append(f"the distribution of the number of links of a row of {' and of '.join(sides)}")
    found += [f"the number of links by attributes of {table}" for table, name in _sides(link) if draws.has(name)]
    if draws.has("both"):
        found.append("which attributes of linked rows go together")
    # rounds of a published mechanism, whose marginals are selected
    if present(folder) and any(name.startswith("round-") for name in listed(folder)):
        found.append("the selected counts over attributes of both ends")
    if draws.has("siblings") and _fits(run, link, rows):
        found.append(f"the similarity of rows of {link.child} with one parent")
    if draws.has("steps"):
        found.append(f"which rows of {link.child} follow each other by {link.order[0]}, and the span of those of a"
                     f" row of {link.parent}")  # fmt: skip
    counts = ", ".join(link.counts or ())
    return found + ([f"the dependence on the number of links in {counts}"] if counts and found else [])


def not_reproduced(run: LinkedTables, link: LinkSection, rows: int) -> list[str]:
    """Return the properties that need not be reproduced, with reasons; the parameters are those of `reproduced`.

    `piece` is the link with its part of the budget: `modelled` if it has a share, `bounded` if a parent's links are
    limited. draws.has(name) states whether a draw was measured.
    """
    draws, lines = stored_draws(run, link), []
    piece = piece_of(run, link)
    if not piece.modelled:
        return ["anything else, because no share of the budget would pay: links are random"]
    if not draws.has("degrees"):
        reason = f"rows of {link.parent} have no bound" if not piece.bounded else _unmeasured(link)
        lines.append(f"the distribution of the number of links of a row of {link.parent} ({reason})")
    if not draws.has("both") and link.mechanism != "published":
        lines.append("which attributes of linked rows go together (by the plan its measurement would add more noise "
                     "than it removes error)")  # fmt: skip
    # several children of a parent, which have an order or are alike
    if link.via is None and link.kind != "one-to-one" and not (link.bound == 1 and piece.bounded):
        if link.order:
            lines += [] if draws.has("steps") else [f"the order of rows of {link.child}"]
        elif not draws.has("siblings"):
            lines.append(f"the similarity of rows of {link.child} with one parent ({_reason(run, link)})")
        elif not _fits(run, link, rows):
            lines.append(f"the similarity of rows of {link.child} with one parent (attributes of both tables may have "
                         "too many combinations)")  # fmt: skip
    return lines


def _sides(link: LinkSection) -> list[tuple[str, str]]:
    """Return each table whose attributes are summed over links, with the name of the sum."""
    if link.parent == link.child or link.via is None:
        return [(link.parent, "u")]  # a row of a child has one link
    return [(link.parent, "u"), (link.child, "v")]


def _reason(run: LinkedTables, link: LinkSection) -> str:
    """Return why the similarity of siblings is not measured."""
    if link.parent == link.child:
        return "it is not measured within one table"
    if not piece_of(run, link).bounded:
        return f"rows of {link.parent} have no bound"
    if link.bound > MOST_SIBLINGS:
        return f"it is measured for at most {MOST_SIBLINGS} links of a row, and max_degree is {link.bound}"
    return _unmeasured(link)


def _unmeasured(link: LinkSection) -> str:
    return 'mechanism = "published"' if link.mechanism == "published" else "it has no share of the budget"


def _fits(run: LinkedTables, link: LinkSection, rows: int) -> bool:
    """Return whether the cross marginals of any such rows fit, so that children are exchanged between parents."""
    piece = piece_of(run, link)
    sizes = piece.sizes(link.parent), piece.sizes(link.child)
    return count_words(*sizes, min(rows, sum(map(math.prod, sizes)))) <= MOST_WORDS


def describe_size(run: LinkedTables, name: str) -> str:
    """Return why a private table has another number of rows than estimated; "" if it has not, or if it is stated.

    The estimate is the noisy total of the table, rounded, and at least 1.
    """
    table = run.tables[name]
    content = describe_rows(table)
    rows, estimate = int(content["rows"]), max(1, round(content["total"]))
    if rows == estimate or stated_rows(run.job, name):
        return ""
    text = f"{name} has {figure(rows)} rows, {{}} than the estimated {figure(estimate)}"
    if rows > estimate:
        return text.format("more") + ", because the rows of other tables in the job require them."
    parents = " and ".join(f"{link.parent} (at most {link.bound} for each row)"
                           for link in required_links(run.job, name) if link.parent != name)  # fmt: skip
    return text.format("fewer") + f", because every row needs a row of {parents}."


def describe_bound(run: LinkedTables, link: LinkSection, rows: int) -> dict[str, Any] | None:
    """Return how many of a parent's `rows` have as many links as the bound permits, from the released histogram.

    Parameters
    ----------
    run : LinkedTables
    link : LinkSection
    rows : int
        Number of synthetic rows of the parent.

    Returns
    -------
    dict, optional
        `rows`, `share` and `error`: the noisy number, its share and the share's standard error; `sure` and `warn`:
        whether the share is above 0, and is large, by more than its error. None if nothing is cut or measured.
    """
    noisy, piece = stored_draws(run, link).measured("degrees"), piece_of(run, link)
    if noisy is None or run.neighbours.replaces or link.bound == 1:
        return None
    below = float(noisy[len(piece.places[0]) - 1])
    share, error = 1 - below / max(rows, 1), math.sqrt(piece.degrees_draw().lattice_variance) / max(rows, 1)
    clipped = min(max(share, 0.0), 1.0)  # noise may lead out of the range
    least_share = share - SURE * error
    return {
        "rows": clipped * rows,
        "share": clipped,
        "error": error,
        "sure": least_share > 0,
        "warn": least_share > MANY,
    }


LITTLE, MUCH = 0.97, 0.1  # expected error relative to random links, and share of cut links, for a warning
LEAST_CUT = 0.01  # share of cut links that is stated


def describe_allocation(run: LinkedTables, link: LinkSection, expected: float | None) -> list[dict[str, Any]]:
    """Return sentences on the division of the budget for a link, each with whether it is a warning.

    Parameters
    ----------
    run : LinkedTables
    link : LinkSection
    expected : float or None
        Expected error of the link relative to random links by the plan of its measurement.
    """
    lines, name = [], link.called
    content = run.allocated_or_none
    if content:
        error, random = content["errors"][name], content["random_links"][name]
        source = "the first measurement" if content["measured"] else "usual numbers of rows"
        text = (f"By {source}, the expected total variation of marginals over both ends of {name} is"
                f" {figure(error)}; that of random links between tables with equal shares of the budget is"
                f" {figure(random)}.")  # fmt: skip
        # a warning if random links are expected to be nearer
        lines.append({"text": text, "warn": error > random})
        if (cut := content.get("cut", {}).get(name)) is not None and cut >= LEAST_CUT:
            bound = "was chosen from this measurement" if name in content.get("bounds", {}) else "is that of the job"
            lines.append({"text": f"About {100 * cut:.0f} % of the links of {name} in the data are beyond the bound of"
                          f" {link.bound}, which {bound}, and were not counted.", "warn": cut > MUCH})  # fmt: skip
    if expected is not None and expected > 1 and link.mechanism == "published":
        text = f"By the noise of its marginals, {LOSES}: {name} has {figure(expected)} times their expected error."
        lines.append({"text": text, "warn": True})
    elif expected is not None and expected > LITTLE:
        lines.append({"text": f"The share of {name} is too small for a signal: its links are hardly better than random"
                      " ones.", "warn": True})  # fmt: skip
    return lines
