"""The report stage: gathers what a run tells of itself and writes report.html. Reads no record and no count."""

from __future__ import annotations

import json
import math
from typing import Any

from dpscale.engine import Engine
from dpscale.engine.counting import effort
from dpscale.jobs.files import write_atomic
from dpscale.jobs.rundir import RunDirectory
from dpscale.jobs.stages import measured
from dpscale.measure import Measurements
from dpscale.report import error_plot, render, share_plot

SHOWN = 40


def run_report(run: RunDirectory, engine: Engine) -> None:
    """Write report.html."""
    run.require("reconstruct")
    if run.done("report"):
        return
    with run.stage("report", "report.html"):
        write_atomic(run.path / "report.html", render(content(run, engine.workers)).encode())


def content(run: RunDirectory, workers: int = 1) -> dict[str, Any]:
    """What the page shows."""
    measurements = measured(run)
    needs = effort(run.domain, measurements.plan.counted, run.job.engine.bytes, workers)
    rows = answered(run)
    return {
        "manifest": run.manifest,
        "job": run.job,
        "domain": run.domain,
        "plan": measurements.plan,
        "saving": needs.saving,
        "rmse": measurements.plan.rmse(run.job.privacy.cost) * (run.job.data.max_rows_per_unit or 1),
        "cost": float(measurements.schedule.cost),
        "weighted": any(part.weight != 1.0 for part in run.job.workload),
        "epsilon": _epsilon(run, measurements),
        "parts": _parts(rows),
        "rows": rows[:SHOWN],
        "hidden": max(len(rows) - SHOWN, 0),
        "error_plot": error_plot(rows),
        "share_plot": share_plot(measurements.plan),
    }


def answered(run: RunDirectory) -> list[dict[str, Any]]:
    """The index of the answers, the largest root mean square standard error first."""
    rows = json.loads((run.path / "answers" / "index.json").read_text())
    return sorted(rows, key=lambda row: -(row["rms_error"] or 0.0))


def _epsilon(run: RunDirectory, measurements: Measurements) -> list[tuple[float, float]]:
    """(ε, δ) pairs that the cost comes to: at the job's own δ first, then at usual ones."""
    cost = measurements.schedule.spent
    own = [0.0] if cost.pure else [run.job.privacy.delta] if run.job.privacy.delta else []
    return [(cost.epsilon(delta), delta) for delta in dict.fromkeys([*own, 1e-6, 1e-9])]


def _parts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a part of the workload: sets, queries, best and worst error."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        part = found.setdefault(row["part"], {"family": row["family"], "sets": 0, "queries": 0, "errors": []})
        part["sets"] += 1
        part["queries"] += row["queries"]
        part["errors"].append(row["rms_error"] or math.nan)
    return [found[number] for number in sorted(found)]
