"""The report stage: gathers what a run tells of itself and writes report.html. Reads no record and no count."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dpscale.blas import one_thread
from dpscale.engine import Engine
from dpscale.engine.counting import effort
from dpscale.privacy.accounting import Cost
from dpscale.report import error_plot, render, share_plot, trace_plot, weight_plot
from dpscale.report.redacted import public_name
from dpscale.runs.answers import read_index
from dpscale.runs.estimates import model_folder
from dpscale.runs.run import Run
from dpscale.runs.sureness import sureness
from dpscale.runs.trace import read_trace
from dpscale.stages.reportparts import job_text, remaining, said, snippets, strategies, told_in_all
from dpscale.storage.files import read_text, write_whole

SHOWN = 25  # of the worst sets, and of the best


def perform(run: Run, engine: Engine) -> None:
    """Write report.html."""
    with one_thread():
        write_whole(run.path / "report.html", render(content(run, engine.workers)).encode())


def content(run: Run, workers: int = 1) -> dict[str, Any]:
    """What the page shows."""
    planned, index, trace = run.planned, read_index(run.path / "answers"), read_trace(run.path / "trace.parquet")
    named, options = run.job.reconstruction, run.job.estimating
    measurements = sum(len(decision.orders) for decision in run.released.decisions())
    sure = list(sureness(run.path / "answers", index))
    return (
        said(run)
        | remaining(run)
        | {
            "dataset": public_name(run.manifest["privacy"]["dataset"]),
            "unit": run.job.data.privacy_unit or "row",
            "sure": sure,
            "told": told_in_all(sure),
            "asked": _words(sure),
            "strategies": strategies(planned.shown),
            "refuses": [one.name for one in run.domain.attributes if "reject" in (one.outside, one.nulls, one.foreign)],
            "snippets": snippets(run, index),
            "job_text": job_text(run.job),
            "manifest": run.manifest,
            "job": run.job,
            "domain": run.domain,
            "planned": planned,
            "cards": planned.cards(run.job.privacy.budget),
            "explains": named.explains(options),
            "extrapolated": _extrapolated(index),
            "disagreement": named.disagreement(planned, options, model_folder(run)),
            "saving": effort(run.domain, planned.counted, run.job.engine.bytes, workers).saving,
            "measurements": measurements,
            "epsilon": _epsilon(run, run.released.spent),
            "rows": answered(run, SHOWN),
            "worst": SHOWN,
            "index": len(index),
            "hidden": max(len(index) - 2 * SHOWN, 0),
            "error_plot": error_plot(_errors(index)),
            "share_plot": share_plot(planned.shares),
            "weight_plot": weight_plot(planned.profiles),
            "drawn": _drawn(run),
            "trace": _by_round(trace),
            "trace_plot": trace_plot(trace),
        }
    )


def _extrapolated(index: Any) -> int | None:
    """How many sets a model answers beyond what was measured; None of answers by least squares."""
    named = "extrapolated" in index.column_names
    return int(index["extrapolated"].to_numpy(zero_copy_only=False).sum()) if named else None


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
    return [lines[number] | {"sets": _named(lines[number]["chosen"])} for number in sorted(lines)]


def _named(chosen: list[str], most: int = 4) -> str:
    """The first sets that a round chose, and how often it chose nothing."""
    sets = [names for names in chosen if names]
    first = [*sets[:most], *["…"] * (len(sets) > most)]
    nothing = len(chosen) - len(sets)
    return "; ".join([*first, *([f"nothing, {nothing} times"] if nothing else [])])


def answered(run: Run, most: int | None = None) -> list[dict[str, Any]]:
    """The index of the answers, the largest root mean square standard error first; all of it, or so many of either
    end."""
    index = read_index(run.path / "answers")
    order = np.argsort(-index["rms_error"].fill_null(0.0).to_numpy(), kind="stable")
    if most is not None and len(order) > 2 * most:
        order = np.concatenate([order[:most], order[-most:]])
    return list(index.take(order).to_pylist())


def _errors(index: Any) -> dict[str, tuple[Any, Any]]:
    """Queries and root mean square standard errors of the answered sets of each family."""
    family, queries, errors = (index[name].to_numpy() for name in ("family", "queries", "rms_error"))
    found = {str(one): (family == one) & (errors > 0) for one in dict.fromkeys(family.tolist())}
    return {one: (queries[mine], errors[mine]) for one, mine in found.items() if mine.any()}


def _epsilon(run: Run, cost: Cost) -> list[tuple[float, float]]:
    """(ε, δ) pairs that the cost comes to: at the job's own δ first, then at usual ones."""
    deltas = [0.0] if cost.pure else [run.job.privacy.delta] if run.job.privacy.delta else []
    return [(cost.epsilon(delta), delta) for delta in dict.fromkeys([*deltas, 1e-6, 1e-9])]


def _words(sure: list[dict[str, Any]]) -> list[str]:
    """What was asked, a family each: questions, sets, attributes."""
    words = []
    for family in dict.fromkeys(line["family"] for line in sure):
        lines = [line for line in sure if line["family"] == family]
        queries, sets = (sum(line[key] for line in lines) for key in ("queries", "sets"))
        degrees = sorted({line["degree"] for line in lines})
        span = f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
        words.append(f"{queries:,} of family {family} ({sets:,} {'set' if sets == 1 else 'sets'} of {span} attributes)")
    return words
