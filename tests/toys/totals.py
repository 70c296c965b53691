"""A stage that writes the estimated total of every set of the workload to a file."""

import json

from dpscale.runs.estimates import estimates_of
from dpscale.storage.files import write_whole


def perform(run, engine):
    estimates = estimates_of(run.table)
    totals = {"+".join(names): float(estimates.marginal(names).sum()) for names in run.table.workload.sets}
    write_whole(run.path / "totals" / "totals.json", json.dumps(totals).encode())
