"""Tables: the answers of a family over one attribute set with labels, standard errors and intervals.

An interval is estimate ± w · standard error. For one answer w is the normal quantile (for Laplace noise that of one
Laplace variable, where it is wider); `joint` has all rows hold at once (`reconstruct.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscale.answers.labels import FIGURES, named
from dpscale.base.arrays import Floats
from dpscale.base.errors import JobError, PlanError
from dpscale.base.names import AttributeSet, nearest, shown
from dpscale.reconstruction.contract import Estimates
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.intervals import at_once, tells_at_once
from dpscale.reconstruction.joint import MOST_JOINT, half_width
from dpscale.workload import FAMILIES, ExplicitPart, Part, ProductPart

MOST_ROWS = 10_000_000
EXTRAPOLATED = "extrapolated"  # a column of tables of models alone
FRAMES: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "arrow": lambda table: table,
    "polars": lambda table: _polars(table),
}


@dataclass(frozen=True, eq=False)
class Answered:
    """What is estimated. `release`: its public name, which seeds what is simulated."""

    estimates: Estimates
    release: str

    def table(self, attributes: Sequence[str], family: str | None, level: float, joint: bool) -> Any:
        """An Arrow table of one row a query, row-major in the order of `attributes`."""
        import pyarrow as pa

        names = checked_names(attributes)
        ordered = self.estimates.workload.domain.ordered(names)
        part = self.part(ordered, family)
        answers, errors = self._along(part, ordered, names)
        half = self.half(part, ordered, errors, level, joint)
        columns = dict(named(self.estimates.workload.domain, part, names))
        columns |= dict(zip(FIGURES, (answers, errors, answers - half, answers + half), strict=True))
        extrapolated = self.estimates.extrapolates(ordered)
        return pa.table(columns if extrapolated is None else columns | {EXTRAPOLATED: [extrapolated] * len(answers)})

    def part(self, names: AttributeSet, family: str | None) -> Part:
        """The queries of a family over a set: as asked for, or any of a family of products where all cells are told.

        No family: the cells, where they are told; else the first family that the workload has over the set.
        """
        mine = [part for part in self.estimates.workload.parts if names in part.sets]
        asked = [part for part in mine if part.name == (family or "marginal")]
        if not asked and (family is None or family in FAMILIES):
            asked = self._cells(names, family, mine)
        if not asked:
            known = sorted({part.name for part in mine} | set(FAMILIES))
            raise JobError("family", f"{shown(family)} over {', '.join(names)}", "a family that was asked over them",
                           nearest(str(family), known))  # fmt: skip
        if asked[0].count(names) > MOST_ROWS:
            raise JobError("family", f"{asked[0].count(names):,} queries", f"at most {MOST_ROWS:,} rows of a table",
                           "ask for single ones by Release.answer")  # fmt: skip
        return asked[0]

    def cells(self, names: AttributeSet) -> tuple[Floats, Floats]:
        """Estimates and standard errors of all cells of a set, an axis per attribute; PlanError where some are unknown.

        Cells that were asked with a weight each are answered as equal ones: a weight of 0 leaves no answer.
        """
        part = self.part(names, "marginal")
        if not isinstance(part, ProductPart):
            (part,) = self._cells(names, "marginal", [])
        return self.estimates.part_answers(part, names)

    def _cells(self, names: AttributeSet, family: str | None, mine: list[Part]) -> list[Part]:
        try:
            self.estimates.marginal(names)
        except PlanError:
            if mine and family is None:
                return mine
            raise
        numeric = frozenset[str]()
        return [ProductPart(self.estimates.workload.domain, family or "marginal", (names,), (1.0,), numeric)]

    def half(self, part: Part, names: AttributeSet, errors: Floats, level: float, joint: bool) -> Floats:
        """Half widths of intervals."""
        check_level(level)
        if not joint:
            return half_width(level, self.estimates.noise) * errors
        if not tells_at_once(self.estimates):
            raise PlanError("joint", "estimates whose errors are not told", "least squares, or simulated errors",
                            'leave it out, or set reconstruct.errors = "simulated" in an aim-grem job')  # fmt: skip
        if isinstance(self.estimates, LeastSquaresEstimates) and part.count(names) > MOST_JOINT:
            raise JobError("joint", f"{part.count(names):,} queries", f"at most {MOST_JOINT:,} that hold at once",
                           "leave it out, or ask for a smaller set")  # fmt: skip
        return at_once(self.estimates, part, names, errors, level, self.release)

    def linear(self, names: Sequence[str], queries: Floats) -> tuple[Floats, Floats]:
        """Estimates and standard errors of linear queries, shape (m, sizes of `names`); PlanError where not all cells
        are told."""
        self.estimates.marginal(names)
        domain = self.estimates.workload.domain
        ordered = domain.ordered(names)
        if getattr(self.estimates, "errors", None) is not None:  # simulated: told one by one
            pairs = np.array([self.estimates.answer(names, query) for query in queries])
            return pairs[:, 0], pairs[:, 1]
        turned = np.ascontiguousarray(queries.transpose([0, *(1 + list(names).index(name) for name in ordered)]))
        return self.estimates.part_answers(ExplicitPart(domain, ordered, turned, np.ones(len(turned))), ordered)

    def _along(self, part: Part, ordered: AttributeSet, names: AttributeSet) -> tuple[Floats, Floats]:
        """Answers and errors, flat, with the axes of products in the order of `names`."""
        answers, errors = self.estimates.part_answers(part, ordered)
        if isinstance(part, ProductPart):
            order = [ordered.index(name) for name in names]
            answers, errors = answers.transpose(order), errors.transpose(order)
        return answers.reshape(-1), errors.reshape(-1)


def checked_names(attributes: Sequence[str]) -> AttributeSet:
    """The names as a tuple; JobError for a text, which would be taken letter by letter."""
    if isinstance(attributes, str):
        raise JobError("attributes", shown(attributes), "a list of names", f"write [{attributes!r}]")
    return tuple(attributes)


def check_level(level: float) -> None:
    """JobError unless intervals can hold with such a probability."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise JobError("level", shown(level), "a probability between 0 and 1", "such as 0.95")


def framed(table: Any, frame: str) -> Any:
    """An Arrow table as `pandas`, `polars` or as it is."""
    if frame not in FRAMES:
        raise JobError("frame", shown(frame), ", ".join(FRAMES), nearest(str(frame), FRAMES))
    return FRAMES[frame](table)


def _polars(table: Any) -> Any:
    try:
        import polars
    except ImportError:
        raise JobError("frame", "polars, which is not installed", "pandas or arrow", "pip install polars") from None
    return polars.from_arrow(table)
