"""The report stage: gathers what a run tells of itself and writes report.html. Reads no record and no count."""

from __future__ import annotations

import json
import math
from typing import Any

from dpscale.engine import Engine
from dpscale.engine.counting import effort
from dpscale.privacy.accounting import Cost
from dpscale.report import error_plot, render, share_plot, trace_plot, weight_plot
from dpscale.runs.estimates import model_folder
from dpscale.runs.run import Run
from dpscale.runs.trace import read_trace
from dpscale.storage.files import read_text, write_whole

SHOWN = 40


def perform(run: Run, engine: Engine) -> None:
    """Write report.html."""
    write_whole(run.path / "report.html", render(content(run, engine.workers)).encode())


def content(run: Run, workers: int = 1) -> dict[str, Any]:
    """What the page shows."""
    planned, rows, trace = run.planned, answered(run), read_trace(run.path / "trace.parquet")
    named, options = run.job.reconstruction, run.job.estimating
    measurements = sum(len(decision.orders) for decision in run.released.decisions())
    return {
        "manifest": run.manifest,
        "job": run.job,
        "domain": run.domain,
        "planned": planned,
        "cards": planned.cards(run.job.privacy.budget),
        "explains": named.explains(options),
        "disagreement": named.disagreement(planned, options, model_folder(run)),
        "saving": effort(run.domain, planned.counted, run.job.engine.bytes, workers).saving,
        "measurements": measurements,
        "epsilon": _epsilon(run, run.released.spent),
        "parts": _parts(rows),
        "rows": rows[:SHOWN],
        "hidden": max(len(rows) - SHOWN, 0),
        "error_plot": error_plot(rows),
        "share_plot": share_plot(planned.shares),
        "weight_plot": weight_plot(planned.profiles),
        "drawn": _drawn(run),
        "trace": _by_round(trace),
        "trace_plot": trace_plot(trace),
    }


def _drawn(run: Run) -> dict[str, Any] | None:
    """What there is of synthetic rows, and how near they are to the estimates."""
    return dict(json.loads(read_text(run.path / "synthetic" / "_rows.json"))) if run.done("synthesize") else None


def _by_round(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a round: what it chose, what each choice cost, and how far estimates moved beside the noise's part."""
    lines: dict[int, dict[str, Any]] = {}
    for row in trace:
        line = lines.setdefault(
            row["round"], {"round": row["round"], "cost": 0.0, "chosen": [], "moved": 0.0, "noise": 0.0}
        )
        line["cost"] += row["privacy_cost"]
        line["chosen"].append(", ".join(row["attributes"]))
        line["moved"] += row["moved"]
        line["noise"] += row["expected_noise"]
    return [lines[number] for number in sorted(lines)]


def answered(run: Run) -> list[dict[str, Any]]:
    """The index of the answers, the largest root mean square standard error first."""
    rows = json.loads((run.path / "answers" / "index.json").read_text())
    return sorted(rows, key=lambda row: -(row["rms_error"] or 0.0))


def _epsilon(run: Run, cost: Cost) -> list[tuple[float, float]]:
    """(ε, δ) pairs that the cost comes to: at the job's own δ first, then at usual ones."""
    deltas = [0.0] if cost.pure else [run.job.privacy.delta] if run.job.privacy.delta else []
    return [(cost.epsilon(delta), delta) for delta in dict.fromkeys([*deltas, 1e-6, 1e-9])]


def _parts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a part of the workload: sets, queries, best and worst error."""
    parts: dict[int, dict[str, Any]] = {}
    for row in rows:
        part = parts.setdefault(row["part"], {"family": row["family"], "sets": 0, "queries": 0, "errors": []})
        part["sets"] += 1
        part["queries"] += row["queries"]
        part["errors"].append(row["rms_error"] or math.nan)
    return [parts[number] for number in sorted(parts)]
