"""A refused value is returned from its task as a value, so that cluster logs and pages do not reveal which file has
it.
"""

from __future__ import annotations

import re
import time

import numpy as np
import pandas as pd
import pytest
import tomli_w

from dpscale import DataError
from dpscale.engine import graphs
from dpscale.job import Job
from tests.audit.small import frame
from tests.running import begin_table, run_stages

FILES = 4


def write_job(place, refused, **policies):
    """Write a job over four files, one of which has a value outside the domain."""
    (place / "data").mkdir(parents=True)
    whole = frame() % [4, 3, 5, 4, 70]
    for number, rows in enumerate(np.array_split(np.arange(len(whole)), FILES)):
        part = whole.iloc[rows].copy()
        if number == refused:
            part.iloc[7, 0] = 9
        part.to_csv(place / "data" / f"{number}.csv", index=False)  # of the same size with it as without
    domain = {name: {"kind": "coded", "size": size} for name, size in {"a": 4, "b": 3, "c": 5}.items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    job = {
        "data": {"path": "data", "domain": "domain.toml", **policies},
        "privacy": {"privacy_cost": 0.5, "dataset": "small"},
        "workload": [{"family": "marginal", "degree": 2}],
        "mechanism": {"name": "residual-planner"},
    }
    (place / "job.toml").write_text(tomli_w.dumps(job))
    return place / "job.toml"


def scheduler_log(dask_scheduler):
    """Return the task transitions and exception texts known to the scheduler."""
    transitions = [(str(entry[0]), *entry[1:3], entry[5]) for entry in dask_scheduler.transition_log]
    return transitions, [text for task in dask_scheduler.tasks.values() if (text := task.exception_text)]


def failures(client):
    """Return the lines of worker logs, which begin with a time, that tell of failed tasks."""
    return {line for lines in client.get_worker_logs().values() for _, line in lines if "Failed" in line}


def collect_traces(client, place, refused, **policies):
    """Return the traces of a refused run in its error, on the scheduler and in worker logs, without random tokens."""
    job = write_job(place, refused, **policies)
    run = begin_table(Job.read(job), place / "run")
    run_stages(run, only="plan")
    before = client.run_on_scheduler(time.time)  # its log forgets what is old
    earlier = failures(client)  # of tests before this on the same workers
    with pytest.raises(DataError) as caught:
        run_stages(run, client=client)
    transitions, errors = client.run_on_scheduler(scheduler_log)
    erred = sorted(mask_tokens(key) for key, *states, at in transitions if at > before and "erred" in states)
    assert any(at > before and "memory" in states for _, *states, at in transitions)
    logs = [mask_tokens(line) for line in failures(client) - earlier]
    return str(caught.value), erred, sorted(set(errors)), sorted(logs)


def mask_tokens(text):
    return re.sub(r"[0-9a-f]{16,}", "TOKEN", text)


@pytest.mark.parametrize("unit", [{}, {"privacy_unit": "unit", "max_rows_per_unit": 2}])
def test_traces_do_not_depend_on_refused_file(client, tmp_path, unit):
    found = [collect_traces(client, tmp_path / str(number), number, **unit) for number in range(FILES)]
    assert found == [found[0]] * FILES
    text, erred, _, logs = found[0]
    assert "outside the domain" in text
    assert erred == logs == []


def test_all_refused_columns_are_named_on_a_cluster(client, tmp_path):
    job = write_job(tmp_path, None)
    for number, column in ((0, 2), (2, 0), (3, 1)):
        part = pd.read_csv(tmp_path / "data" / f"{number}.csv")
        part.iloc[5, column] = 9
        part.to_csv(tmp_path / "data" / f"{number}.csv", index=False)
    messages = set()
    for where, given in (("cluster", client), ("here", None)):
        with pytest.raises(DataError) as caught:
            run_stages(begin_table(Job.read(job), tmp_path / where), client=given)
        messages.add(str(caught.value))
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    [text] = messages
    assert text.startswith("data columns: ")
    assert text.count("(a value outside the domain)") == 3


def test_planted_exceptions_reveal_the_file(client, tmp_path, monkeypatch):
    """Planted fault: if the task raises, its key reveals the file."""

    class RaisingCall:
        def __init__(self, function):
            self.function, self.__name__ = function, "plain"

        def __call__(self, *arguments):
            result = self.function(*arguments)
            if type(result).__name__ == "ReturnedError":
                raise result.error
            return result

    redacted_call = graphs.RedactedCall
    monkeypatch.setattr(graphs, "RedactedCall", lambda function: RaisingCall(redacted_call(function)))
    found = [collect_traces(client, tmp_path / str(number), number) for number in range(FILES)]
    assert all(erred for _, erred, _, _ in found), found
    assert len({str(erred) for _, erred, _, _ in found}) > 1, found
