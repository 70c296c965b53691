"""Parts of the report that follow from estimates, plan, ledger and job: what it says, what is left, how to read on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from dpscale.answers import statistics, telling
from dpscale.answers.report import pair, single, strategy_picture
from dpscale.answers.report.redacted import redacted
from dpscale.answers.tables import Answered
from dpscale.base.errors import DpscaleError, PlanError
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.ledger.cap import SENSIBLE
from dpscale.plans.plan import Plan
from dpscale.runs.answers import Columns
from dpscale.runs.estimates import estimates_of
from dpscale.runs.run import Run

SQL, R = ("'", {"'": "''"}), ('"', {'"': '\\"', "\\": "\\\\"})
SINGLES, PAIRS, STRATEGIES, MOST_SIDE = 4, 3, 4, 64


def said(run: Run) -> dict[str, Any]:
    """The estimated total and the most telling tables."""
    answered = Answered(estimates_of(run), str(run.manifest["release"]))
    singles, pairs = telling.singles(answered, SINGLES), telling.pairs(answered, PAIRS)
    return {
        "total": _total(answered),
        "singles": [single(one.names, one.labels, one.values, one.half) for one in singles],
        "pairs": [pair(one.names, one.labels, one.values) for one in pairs],
    }


def _total(answered: Answered) -> dict[str, Any] | None:
    try:
        estimate, _, high = statistics.total(answered, telling.LEVEL)
    except PlanError:  # what was asked does not add up to it
        return None
    return {"estimate": estimate, "half": high - estimate if np.isfinite(high) else None}


def told_in_all(sure: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Over all families: the typical error by sets, and the share of answers below their error; None: none is told."""
    lines = [line for line in sure if line["typical"] is not None]
    if not lines:
        return None
    beyond = [(line["beyond"], line["queries"]) for line in lines if line["beyond"] is not None]
    return {
        "typical": _mean([(line["typical"], line["sets"]) for line in lines]),
        "beyond": _mean(beyond) if beyond else None,
    }


def _mean(weighted: list[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in weighted) / sum(weight for _, weight in weighted)


def remaining(run: Run) -> dict[str, Any]:
    """What is left under the dataset's cap, by the ledger as it stands; nothing where it is not at hand."""
    ledger, none = str(run.job.privacy.ledger), {"remaining": None, "capless": False}
    if not Path(ledger).is_file():
        return none
    with suppress(DpscaleError, OSError), Ledger.open(ledger, create=False) as opened:
        told = next(iter(opened.summary(run.manifest["privacy"]["dataset"])["datasets"].values()))
        if told["remaining"] is None:
            return {"remaining": None, "capless": told["cap"] is None}
        cap, left = told["cap"], told["remaining_epsilon"]
        left = left if left >= SENSIBLE * cap["epsilon"] else 0.0  # what rounding left
        return {"remaining": {"epsilon": left, "delta": cap["delta"]}, "capless": False}
    return none


def strategies(plan: Any) -> list[dict[str, Any]]:
    """Pictures of a plan's strategies on some sets, no two of one kind; none of a plan that chooses as it goes."""
    if not isinstance(plan, Plan):
        return []
    found = list[dict[str, Any]]()
    for index, _ in plan.blocks.kinds:
        names = plan.blocks[index].attributes
        if names and plan.domain.cells(names) <= MOST_SIDE and len(found) < STRATEGIES:
            matrix = plan.strategy(names)
            if len(matrix) <= 2 * MOST_SIDE:
                found.append({"names": names, "rows": len(matrix), "cells": matrix.shape[1],
                              "picture": strategy_picture(matrix)})  # fmt: skip
    return found


def snippets(run: Run, index: Any) -> list[tuple[str, str]]:
    """How to read one set's answers from the published files, by language; a set that has a file."""
    rows = index.filter(index["file"].is_valid()).slice(0, 1).to_pylist()
    if not rows:
        return [("Python", 'import dpscale as dp\n\nrelease = dp.Release.open("RUN_DIRECTORY")\nrelease.total()')]
    row = rows[0]
    part, names = run.workload.parts[row["part"]], row["attributes"]
    folder = f"answers/{Columns(run.domain, part, len(names)).folder}/*.parquet"
    where = " AND ".join(f"attribute_{i} = {_quoted(name, SQL)}" for i, name in enumerate(names, 1)) or "true"
    r = " & ".join(f"attribute_{i} == {_quoted(name, R)}" for i, name in enumerate(names, 1)) or "TRUE"
    python = (f'import dpscale as dp\n\nrelease = dp.Release.open("RUN_DIRECTORY")\n'
              f'release.table({list(names)}, family="{part.name}")\nrelease.total()')  # fmt: skip
    return [("Python", python), ("DuckDB", f"SELECT * FROM '{folder}'\nWHERE {where};"),
            ("R", f'library(arrow)\nlibrary(dplyr)\nopen_dataset("{folder.rsplit("/", 1)[0]}") |>\n'
                  f'  filter({r}) |>\n  collect()')]  # fmt: skip


def _quoted(name: str, language: tuple[str, Mapping[str, str]]) -> str:
    """A name as a text of a language."""
    mark, escaped = language
    return mark + "".join(escaped.get(letter, letter) for letter in name) + mark


def job_text(job: Job) -> str:
    """The job file, without what tells where things are."""
    return tomli_w.dumps(redacted(job.to_dict()))
