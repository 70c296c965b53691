"""The report stage: gathers what a run tells of itself and writes report.html. Reads no record and no count."""

from __future__ import annotations

import json
import math
from typing import Any

from dpscale.engine import Engine
from dpscale.engine.counting import effort
from dpscale.measure import Measurements
from dpscale.measure.rounds import Rounds
from dpscale.privacy.accounting import Cost
from dpscale.reconstruct.agreement import Disagreement, disagreement
from dpscale.reconstruct.modelled import NO_ERRORS, SIMULATED
from dpscale.report import error_plot, render, share_plot, trace_plot
from dpscale.runs.models import MODEL, model_folder, read_model
from dpscale.runs.run import RunDirectory
from dpscale.runs.trace import read_trace
from dpscale.stages.measure import measured
from dpscale.stages.methods import method_of
from dpscale.storage.files import write_whole

SHOWN, SAMPLED = 40, 200


def run_report(run: RunDirectory, engine: Engine) -> None:
    """Write report.html."""
    run.require("reconstruct")
    if run.done("report"):
        return
    with run.stage("report", "report.html"):
        write_whole(run.path / "report.html", render(content(run, engine.workers)).encode())


def content(run: RunDirectory, workers: int = 1) -> dict[str, Any]:
    """What the page shows."""
    told = measured(run)
    needs = effort(run.domain, told.plan.counted, run.job.engine.bytes, workers)
    rows = answered(run)
    shown = {
        "manifest": run.manifest,
        "job": run.job,
        "domain": run.domain,
        "plan": told.plan,
        "method": method_of(run.job),
        "saving": needs.saving,
        "weighted": any(part.weight != 1.0 for part in run.job.workload),
        "epsilon": _epsilon(run, told.spent),
        "parts": _parts(rows),
        "rows": rows[:SHOWN],
        "hidden": max(len(rows) - SHOWN, 0),
        "error_plot": error_plot(rows),
        "error_label": SIMULATED if run.job.reconstruct.errors == "simulated" else NO_ERRORS,
        "disagreement": _disagreement(run),
    }
    return shown | (_of_rounds(run, told) if isinstance(told, Rounds) else _of_plan(run, told))


def _of_plan(run: RunDirectory, measurements: Measurements) -> dict[str, Any]:
    plan = measurements.plan
    rmse = plan.rmse(run.job.privacy.cost) * (run.job.data.max_rows_per_unit or 1)
    return {"adaptive": False, "rmse": rmse, "cost": float(measurements.schedule.cost), "share_plot": share_plot(plan),
            "measurements": len(plan.blocks), "trace": [], "trace_plot": ""}  # fmt: skip


def _of_rounds(run: RunDirectory, rounds: Rounds) -> dict[str, Any]:
    trace = read_trace(run.path / "trace.parquet")
    return {"adaptive": True, "rmse": None, "cost": float(rounds.plan.setting.rho), "share_plot": "",
            "measurements": sum(len(decision.orders) for decision in rounds.decisions()),
            "trace": _by_round(trace), "trace_plot": trace_plot(trace)}  # fmt: skip


def _by_round(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a round: what it chose, what each choice cost, and how far estimates moved beside the noise's part."""
    found: dict[int, dict[str, Any]] = {}
    for row in trace:
        line = found.setdefault(
            row["round"], {"round": row["round"], "rho": 0.0, "chosen": [], "moved": 0.0, "noise": 0.0}
        )
        line["rho"] += row["rho"]
        line["chosen"].append(", ".join(row["attributes"]))
        line["moved"] += row["moved"]
        line["noise"] += row["expected_noise"]
    return [found[number] for number in sorted(found)]


def _disagreement(run: RunDirectory) -> Disagreement | None:
    """How far targets differ on what they have in common, over a sample of pairs; None where they agree by making."""
    path = model_folder(run) / MODEL
    if run.job.reconstruct.agree or not path.exists():
        return None
    targets = [names for names in run.plan().workload.sets if len(names) > 1]
    return disagreement(read_model(path).coarse_marginal, targets, SAMPLED)


def answered(run: RunDirectory) -> list[dict[str, Any]]:
    """The index of the answers, the largest root mean square standard error first."""
    rows = json.loads((run.path / "answers" / "index.json").read_text())
    return sorted(rows, key=lambda row: -(row["rms_error"] or 0.0))


def _epsilon(run: RunDirectory, cost: Cost) -> list[tuple[float, float]]:
    """(ε, δ) pairs that the cost comes to: at the job's own δ first, then at usual ones."""
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
