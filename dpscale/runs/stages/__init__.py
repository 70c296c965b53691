"""Table of the stages of a run, in order. Commands, hashes of outputs, `status` and DAGs are derived from it.

A finished stage returns at once, so each stage can be called separately and repeatedly, from a shell, a DAG or Python.
"""

from __future__ import annotations

from dpscale.runs.stage import Stage

TABLE = (
    Stage("plan", "Choose what is measured; reads no data, spends nothing.",
          "plan", "plan/plan.json", "dpscale.runs.stages.plan"),
    Stage("measure", "Count, charge the ledger and draw the noise of a planned run.",
          "measurements", "measurements", "dpscale.runs.stages.measure", needs=("plan",), spends=True),
    Stage("reconstruct", "Write the answers of a measured run.",
          "answers", "answers/index.parquet", "dpscale.runs.stages.reconstruct", needs=("plan", "measure")),
    Stage("synthesize", "Draw synthetic rows from a measured run.",
          "synthetic", "synthetic/_rows.json", "dpscale.runs.stages.synthesize", needs=("plan", "measure"),
          enabled_by="synthesis"),
    Stage("report", "Write the report of an answered run.",
          "report.html", "report.html", "dpscale.runs.stages.report", needs=("plan", "reconstruct")),
)  # fmt: skip

STAGES: dict[str, Stage] = {stage.name: stage for stage in TABLE}
