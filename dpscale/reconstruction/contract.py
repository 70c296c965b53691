"""What a reconstruction is: a name in the job file, its options, and how it comes from evidence to estimates.

Post-processing: free, repeatable, and it never sees a record or an exact count. A reconstruction is one module that
ends in `RECONSTRUCTION = Reconstruction(…)` and one line in the table of `reconstruct`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from dpscale.base.arrays import Floats
from dpscale.base.each import Each
from dpscale.base.faults import Settings, setting
from dpscale.base.names import AttributeSet
from dpscale.plans.planned import Planned
from dpscale.reconstruction.evidence import Evidence
from dpscale.reconstruction.junction_tree.model import Model
from dpscale.workload import Part, Workload


class Estimates(Protocol):
    """What a release answers from."""

    @property
    def workload(self) -> Workload: ...
    @property
    def noise(self) -> str: ...
    def extrapolates(self, attributes: Sequence[str], /) -> bool | None:
        """Whether some cell of the marginal lies outside the row space of the measurements; None: such are refused."""

    def marginal(self, attributes: Sequence[str], /) -> Floats:
        """Estimated counts over the attributes, an axis each in the order asked."""

    def answer(self, attributes: Sequence[str], query: Any, /) -> tuple[float, float]:
        """Estimate and standard error (nan: none is told) of one linear query, an array over the attributes' cells."""

    def part_answers(self, part: Part, attributes: AttributeSet, /) -> tuple[Floats, Floats]:
        """The same of all queries of a part over one set, an axis per attribute or one axis."""

    def several(self, part: Part, sets: Sequence[AttributeSet], /) -> Iterator[tuple[Floats, Floats]]:
        """The same of several sets, one after the other."""


class Plain(Settings):
    """Of a reconstruction that has no settings of its own: what others take is refused but for what says nothing."""

    errors: Literal["auto"] = setting("auto", "auto (simulated with method maxent of an adaptive mechanism)",
                                      "exact where they follow from the noise alone, else none")  # fmt: skip
    agree: Literal[False] = setting(False, "false (true with method maxent)", "estimates agree as they are")


def nothing(*_: Any) -> None:
    """Of a reconstruction that refuses no plan, or keeps no model."""


@dataclass(frozen=True)
class Reconstruction:
    """How estimates come of evidence.

    form: of evidence that it takes, a method of `Evidence`: least_squares, residuals, low_order or measurements.
    explains: what a reader should know of estimates made with these options, as HTML-free text; "" where the report's
    own words on standard errors hold.
    check: PlanError or JobError where a plan cannot be reconstructed so, before anything is spent.
    joint: the distribution that `keep` left in the folder, where it is one from which rows can be drawn.
    keep: makes what is dear into a folder, once, for the tasks that answer from it; `release` names the release.
    estimates: from the evidence, and from what `keep` left in the folder, where there is any.
    """

    name: str
    Options: type[Settings]
    form: str
    explains: Callable[[Any], str]
    estimates: Callable[[Evidence, Any, Path], Estimates]
    check: Callable[[Planned, Any, int], None] = nothing
    keep: Callable[[Evidence, Any, Path, str, Each], None] = nothing
    disagreement: Callable[[Planned, Any, Path], Any] = nothing
    joint: Callable[[Path], Model] | None = None
