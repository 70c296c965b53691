"""A refused value leaves its task as a value: nothing that a cluster logs or shows tells which file it is in."""

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
from dpscale.runs.run import Run
from dpscale.runs.stages.runner import run_stages
from tests.audit.small import SIZES, frame

FILES = 4


def write(place, refused, **policies):
    """A job over four files, one of which holds a value outside the domain."""
    (place / "data").mkdir(parents=True)
    whole = frame()
    for number, rows in enumerate(np.array_split(np.arange(len(whole)), FILES)):
        part = whole.iloc[rows].copy()
        if number == refused:
            part.iloc[7, 0] = 9
        part.to_csv(place / "data" / f"{number}.csv", index=False)  # of the same size with it as without
    domain = {name: {"kind": "coded", "size": size} for name, size in SIZES.items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    job = {
        "data": {"path": "data", "domain": "domain.toml", **policies},
        "privacy": {"privacy_cost": 0.5, "dataset": "small"},
        "workload": [{"family": "marginal", "degree": 2}],
        "mechanism": {"name": "residual-planner"},
    }
    (place / "job.toml").write_text(tomli_w.dumps(job))
    return place / "job.toml"


def shown(dask_scheduler):
    """What the scheduler knows of tasks: their states by name, and errors."""
    transitions = [(str(entry[0]), *entry[1:3], entry[5]) for entry in dask_scheduler.transition_log]
    return transitions, [text for task in dask_scheduler.tasks.values() if (text := task.exception_text)]


def traces(client, place, refused, **policies):
    """What a refused run leaves in logs, on the scheduler and in its error, keys without their random part."""
    job = write(place, refused, **policies)
    run = Run.create(Job.read(job), place / "run")
    run_stages(run, only="plan")
    before = client.run_on_scheduler(time.time)  # its log forgets what is old
    with pytest.raises(DataError) as caught:
        run_stages(run, client=client)
    transitions, errors = client.run_on_scheduler(shown)
    erred = sorted(plain(key) for key, *states, at in transitions if at > before and "erred" in states)
    assert any(at > before and "memory" in states for _, *states, at in transitions)
    logs = [plain(line) for lines in client.get_worker_logs().values() for _, line in lines if "Failed" in line]
    return str(caught.value), erred, sorted(set(errors)), sorted(logs)


def plain(text):
    return re.sub(r"[0-9a-f]{16,}", "TOKEN", text)


@pytest.mark.parametrize("unit", [{}, {"privacy_unit": "unit", "max_rows_per_unit": 2}])
def test_the_traces_of_a_refused_value_are_the_same_wherever_it_is(client, tmp_path, unit):
    found = [traces(client, tmp_path / str(number), number, **unit) for number in range(FILES)]
    assert found == [found[0]] * FILES
    text, erred, _, logs = found[0]
    assert "outside the domain" in text
    assert erred == logs == []


def test_all_columns_are_named_on_a_cluster_as_anywhere(client, tmp_path):
    job = write(tmp_path, None)
    for number, column in ((0, 2), (2, 0), (3, 1)):
        part = pd.read_csv(tmp_path / "data" / f"{number}.csv")
        part.iloc[5, column] = 9
        part.to_csv(tmp_path / "data" / f"{number}.csv", index=False)
    said = set()
    for where, given in (("cluster", client), ("here", None)):
        with pytest.raises(DataError) as caught:
            run_stages(Run.create(Job.read(job), tmp_path / where), client=given)
        said.add(str(caught.value))
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    [text] = said
    assert text.startswith("data columns: ")
    assert text.count("(a value outside the domain)") == 3


def test_the_planted_way_by_exceptions_is_seen(client, tmp_path, monkeypatch):
    """As it was: the key of the task that failed says which file."""

    class Plain:
        def __init__(self, function):
            self.function, self.__name__ = function, "plain"

        def __call__(self, *arguments):
            result = self.function(*arguments)
            if type(result).__name__ == "ReturnedError":
                raise result.error
            return result

    redacted_call = graphs.RedactedCall
    monkeypatch.setattr(graphs, "RedactedCall", lambda function: Plain(redacted_call(function)))
    found = [traces(client, tmp_path / str(number), number) for number in range(FILES)]
    assert all(erred for _, erred, _, _ in found), found
    assert len({str(erred) for _, erred, _, _ in found}) > 1, found
