"""AIM+GReM (Mullins, Fuentes et al., 2025) and a variant of our own: adaptive measurement of residuals.

The exponential mechanism selects the sets whose estimates are farthest from the data. As published, a round measures
one marginal and estimates by GReM. By default, a round measures pairs in batches over groups of cells and estimates by
local maximum entropy, which is much more accurate (docs/mechanisms.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from dpscale.base.display import format_bytes
from dpscale.base.errors import JobError, PlanError
from dpscale.base.settings import setting
from dpscale.domain.rules import DomainConstraint
from dpscale.mechanisms.aim.adaptive_plan import (
    AdaptiveOptions,
    AdaptivePlan,
    adaptive_mechanism,
    make_setting,
    plan_of_period,
)
from dpscale.mechanisms.aim.continued import POOLING
from dpscale.mechanisms.aim.estimators import EntropyEstimator, Estimator, GremEstimator
from dpscale.mechanisms.aim.setting import BatchedSchedule, PublishedSchedule, RoundSchedule
from dpscale.mechanisms.contract import PlanningProblem, Tools

NAME = "aim-grem"
BYTES, LAZY_BYTES = 8, 1 << 30  # of a cell; of the marginals of all candidates, above which updates are not lazy


class Options(AdaptiveOptions):
    """Options of the adaptive loop; defaults chosen by benchmarks (benchmarks/adaptive.py mechanisms)."""

    published: bool = setting(
        False, "true or false", "true: AIM+GReM as in the paper, with the options allocation and updates only"
    )
    rounds: int = setting(
        9, "a whole number from 1 to 10000", "number of rounds that would measure every candidate once", ge=1, le=10_000
    )
    degree: int = setting(
        3,
        "a whole number from 2 to 6",
        "attributes of the largest set that is measured; sets beyond pairs need few cells",
        ge=2,
        le=6,
    )
    allocation: Literal["conditional", "iid"] = setting(
        "conditional",
        "conditional, iid",
        "of the published mechanism: divide a round by conditional ResidualPlanner, or equal noise in every cell",
    )
    updates: Literal["lazy", "touched"] = setting(
        "lazy",
        "lazy, touched",
        "of the published mechanism: retain all marginals, up to 1 GiB, and add changes, or compute those with a "
        "changed residual again",
    )
    with_published: ClassVar[tuple[str, ...]] = ("published", "allocation", "updates")
    omitted: ClassVar[tuple[str, ...]] = ("allocation", "updates")
    fixed: ClassVar[Mapping[str, str]] = {**AdaptiveOptions.fixed, "penalty": "0.375", "patience": "0.5", "growth": "2",
                                          "chains": "1"}  # fmt: skip

    @model_validator(mode="after")
    def _published_only(self) -> Self:
        """Refuse options of the published mechanism without published = true."""
        for name in sorted(self.model_fields_set & {"allocation", "updates"}):
            if not self.published:
                raise ValueError(JobError(f"mechanism.{name}", "given without published = true",
                                          "an option of the published mechanism",
                                          "set published = true, or leave it out"))  # fmt: skip
        return self

    def schedule(self) -> RoundSchedule:
        """Return the schedule of the options."""
        if self.published:
            return PublishedSchedule(isotropic=self.allocation == "iid")
        return BatchedSchedule(rounds=self.rounds, degree=self.degree)

    def estimator(self, rules: tuple[DomainConstraint, ...]) -> Estimator:
        """Return the estimator of the options, for a domain with such constraints."""
        if self.published:
            return GremEstimator(lazy=self.updates == "lazy")
        return EntropyEstimator(rules=rules)


def plan(problem: PlanningProblem, options: Options, tools: Tools | None = None) -> AdaptivePlan:
    """Return the candidates and their cost as a plan; PlanError or JobError for unsupported workloads."""
    rules = problem.workload.domain.rules
    setting_of = make_setting(problem, options.schedule(), options.estimator(rules), cumulated=not options.published,
                              coarser=not options.published)  # fmt: skip
    if options.published and options.updates == "lazy":
        needed = BYTES * sum(problem.workload.domain.cells_each(setting_of.candidates))
        # refused if the option states lazy updates; the default falls back to the others
        if needed > LAZY_BYTES and "updates" in options.model_fields_set:
            raise PlanError("mechanism.updates", f'"lazy" for candidates of {format_bytes(needed)}',
                            f"at most {format_bytes(LAZY_BYTES)}", 'use updates = "touched"')  # fmt: skip
        if needed > LAZY_BYTES:
            setting_of = replace(setting_of, estimator=GremEstimator())

    kind = "AIM+GReM as published" if options.published else "local maximum entropy"
    estimating = setting_of
    if options.published:  # the schedule chooses the groups of these estimates only
        estimating = replace(setting_of, schedule=BatchedSchedule(revision=1), estimator=EntropyEstimator(rules=rules))

    return AdaptivePlan(
        workload=problem.workload,
        mechanism=NAME,
        setting=setting_of,
        estimating=estimating,
        kind=kind,
        options=options.exact(),
    )


def forms(options: Options) -> tuple[str, ...]:
    return ("residuals", "low_order", "measurements") if options.published else ("low_order", "measurements")


REQUIRES = {"grem": "mechanism.published = true"}
# 1 scored listed queries on single cells, 2 had no coarser levels as candidates, 3 had larger groups and more triples
RESUMES = frozenset({"1", "2", "3"})
MECHANISM = adaptive_mechanism(
    NAME, Options, plan, forms, "4", RESUMES, requires=REQUIRES, pooling=POOLING, for_period=plan_of_period
)
