"""Digests of jobs on the ledger: a job that an earlier version released is refused a second time."""

import json
from pathlib import Path

import pytest

import dpscale as dp
from dpscale.ledger import Ledger
from dpscale.ledger.rows import JobEntry
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from dpscale.runs.opening import content_of, read_job
from dpscale.runs.preflight import check_first_release
from tests.messages import refused

ROOT = Path(__file__).parents[2]
STORED = json.loads(Path(__file__).with_name("job-digests.json").read_text())  # of version 2, by the path of the job


@pytest.mark.parametrize("path", STORED)
def test_released_job_is_refused_again(path, tmp_path):
    job = read_job(ROOT / path)
    privacy = job.privacy.model_copy(update={"ledger": str(tmp_path / "ledger.sqlite"), "dataset": "stored"})
    engine = job.engine.model_copy(update={"seed": None})
    digest = content_of(job.kind).prepare(job).digest
    assert digest == STORED[path]
    stated = job.model_copy(update={"privacy": privacy, "engine": engine})
    entry = JobEntry(f"2:{STORED[path]}", "earlier", "runs/earlier", "")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge("stored", "earlier", Cost(gaussian=1), "0" * 64, None, None, True, Protection(None, bound=1),
                      public=False, facts={}, periods=(), job=entry)  # fmt: skip
    with refused(dp.BudgetError):
        check_first_release(stated, digest, fresh=False)
    check_first_release(stated, digest, fresh=True)
