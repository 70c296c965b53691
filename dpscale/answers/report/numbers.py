"""Sums and statistics of numbers in the report: totals as rows, and groups of one attribute as bars with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.answers.report.figures import number_bars
from dpscale.answers.tables import FIGURES, LEVEL, Answered, is_planned, texts
from dpscale.base.numerics import AttributeSet
from dpscale.workload import WorkloadPart

MOST_GROUPS = 60  # bars of a figure


def has_numbers(part: WorkloadPart) -> bool:
    """Return whether the answers of a part are sums or statistics of numbers."""
    return any(not part.domain.number_names.isdisjoint(names) for names in part.sets)


def number_results(answered: Answered, most: int) -> dict[str, Any]:
    """Return totals, figures of the first `most` sets of one attribute, and the number of all sets.

    Parameters
    ----------
    answered : Answered
    most : int

    Returns
    -------
    dict
        `totals`: name, unit, estimate, low and high of sets without attributes; `figures`: title and SVG; `sets`: the
        number of sets.
    """
    totals, figures, number = list[dict[str, Any]](), list[dict[str, str]](), 0
    for part in filter(has_numbers, answered.estimates.workload.parts):
        for names in (names for names in part.sets if is_planned(part, names)):
            shown, number = part.shown(names), number + 1
            labelled = bool(part.query_texts) or any(end.is_text for end in part.ends)
            if not shown:
                totals.append(_total(answered, part, names))
            elif len(shown) == 1 and not labelled and part.count(names) <= MOST_GROUPS and len(figures) < most:
                figures.append(_figure(answered, part, names))
    return {"totals": totals, "figures": figures, "sets": number}


def _total(answered: Answered, part: WorkloadPart, names: AttributeSet) -> dict[str, Any]:
    row = answered.table((), part.name, LEVEL, False).to_pylist()[0]
    known = {name: None if row[name] != row[name] else row[name] for name in FIGURES}
    return {"name": part.name, "unit": part.unit(names), **known}


def _figure(answered: Answered, part: WorkloadPart, names: AttributeSet) -> dict[str, str]:
    [name] = part.shown(names)
    table = answered.table((name,), part.name, LEVEL, False)
    estimate, low, high = (table[one].to_numpy() for one in ("estimate", "low", "high"))
    column = table.column(0).to_pylist()
    cells = texts(part.domain[name])
    labels = cells if len(column) == len(cells) else [str(one) for one in column]
    unknown = int(np.isnan(estimate).sum())
    title = f"{part.name} by {name}" + (f" ({unknown} groups without one)" if unknown else "")
    return {"title": title, "svg": number_bars(name, part.unit(names), labels, estimate, low, high)}
