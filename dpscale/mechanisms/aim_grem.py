"""AIM+GReM (Mullins, Fuentes et al., 2025), and our own kin of it: adaptive measurement of residuals.

What is measured is chosen as it goes, by the exponential mechanism, where estimates are farthest from the table. As
published, one marginal a round and estimates by GReM; by default pairs in batches over groups of cells, and estimates
of local maximum entropy, which is far nearer to the truth (docs/mechanisms.md).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Self

from pydantic import model_validator

from dpscale.errors import JobError
from dpscale.faults import Settings, setting
from dpscale.mechanisms.aim.beliefs import Beliefs, Grem, MaximumEntropy
from dpscale.mechanisms.aim.chain import Chosen
from dpscale.mechanisms.aim.schedule import Batched, Published, RoundSchedule
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.contract import Mechanism, Question, Tools
from dpscale.plans.planfile import check_content
from dpscale.privacy.budget import LAPLACE
from dpscale.workload.targets import targets_of, whole_weights

NAME = "aim-grem"
FINEST = 1 << 20


class Options(Settings):
    """How the loop goes about it. The defaults are our own best on evidence (benchmarks/adaptive.py)."""

    published: bool = setting(False, "true or false", "true: AIM+GReM as in the paper, and no other option")
    ones: float = setting(0.3, "a share from 0.01 to 0.99", "the 1-ways' share of β", ge=0.01, le=0.99)
    selecting: float = setting(
        0.1, "a share from 0.01 to 0.99", "the share of a round that pays its choices", ge=0.01, le=0.99
    )
    grain: float = setting(0.45, "a number from 0 to 100", "how coarse groups of cells are", ge=0, le=100)
    penalty: float = setting(
        0.375, "a number from 0 to 100", "how much of its noise a set's score gives up", ge=0, le=100
    )
    patience: float = setting(
        0.5, "a number from 0 to 100", "a round is in vain that moves estimates by less of its noise", ge=0, le=100
    )
    growth: int = setting(
        2, "a whole number from 1 to 1000", "how the budget of a measurement grows after such a round", ge=1, le=1000
    )
    rounds: int = setting(
        9, "a whole number from 1 to 10000", "how many rounds would measure every candidate once", ge=1, le=10_000
    )
    degree: int = setting(2, "a whole number from 2 to 6", "the largest set that is measured", ge=2, le=6)
    chains: int = setting(1, "a whole number from 0 to 10", "how often pairs are held against chains", ge=0, le=10)

    @model_validator(mode="after")
    def _alone(self) -> Self:
        others = sorted(self.model_fields_set - {"published"})
        if self.published and others:
            raise ValueError(JobError(f"mechanism.{others[0]}", "given beside published = true",
                                      "the paper's own settings", "leave it out"))  # fmt: skip
        return self

    def schedule(self) -> RoundSchedule:
        """How it spends."""
        if self.published:
            return Published()
        return Batched(
            _share(self.ones),
            _share(self.selecting),
            self.penalty,
            self.patience,
            self.growth,
            self.rounds,
            self.degree,
        )

    def beliefs(self) -> Beliefs:
        """What it believes."""
        return Grem() if self.published else MaximumEntropy(self.grain, self.chains)

    def exact(self) -> dict[str, str]:
        """As plan.json has them."""
        shares = {name: _share(getattr(self, name)) for name in ("ones", "selecting")}
        return {name: str(value) for name, value in (self.model_dump() | shares).items()}


def _share(value: float) -> Fraction:
    return Fraction(str(value)).limit_denominator(FINEST)


def plan(question: Question, options: Options, tools: Tools | None = None) -> Chosen:
    """What will be chosen among, at what cost. PlanError or JobError for what cannot be asked."""
    if question.noise == LAPLACE:
        raise JobError("privacy", "epsilon alone (pure) for an adaptive mechanism", "epsilon with delta, or beta",
                       "add delta")  # fmt: skip
    workload, targets = question.workload, targets_of(question.workload)
    sizes = {attribute.name: attribute.size for attribute in workload.domain.attributes}
    asked = Setting(sizes, tuple(targets), Fraction(question.budget.amount), question.rows_per_unit, options.schedule(),
                    options.beliefs(), whole_weights(targets))  # fmt: skip
    kind = "AIM+GReM as published" if options.published else "local maximum entropy"
    entropy = replace(asked, schedule=Batched(), beliefs=MaximumEntropy()) if options.published else asked
    return Chosen(workload, NAME, asked, entropy, kind, options.exact())


def read(folder: Path, question: Question, options: Options) -> Chosen:
    """The plan that follows from a job; JobError unless it is the one in the folder."""
    planned = plan(question, options)
    check_content(folder, planned.to_dict())
    return planned


def forms(options: Options) -> tuple[str, ...]:
    return ("residuals", "low_order", "measurements") if options.published else ("low_order", "measurements")


OTHERWISE = {"grem": "mechanism.published = true"}
MECHANISM = Mechanism(NAME, Options, plan, read, forms, beforehand=False, otherwise=OTHERWISE)
