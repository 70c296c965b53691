"""Defaults in Dask's configuration."""

import dask
import pytest

from dpscale import JobError
from dpscale.engine.configuration import configured
from dpscale.job.job import job_digest
from dpscale.job.sections import EngineSettings
from dpscale.runs.opening import read_job
from tests.runs.small import table, write_job, write_table


@pytest.mark.parametrize(("key", "value", "name", "expected"), [
    ("memory", "2GiB", "bytes", 2 << 30),
    ("max-sets", 17, "most_sets", 17),
    ("max-cells", 18, "most_cells", 18),
    ("planning-seconds", 2.5, "longest_planning", 2.5),
])  # fmt: skip
def test_configuration_has_the_defaults_of_a_job(key, value, name, expected):
    before = getattr(EngineSettings(), name)
    with dask.config.set({f"dpscale.{key}": value}):
        assert getattr(EngineSettings(), name) == expected
    assert getattr(EngineSettings(), name) == before
    stated = EngineSettings(memory="1GiB", max_sets=1, max_cells=2, planning_seconds=3)
    with dask.config.set({f"dpscale.{key}": value}):
        assert getattr(stated, name) != expected


def test_defaults_are_those_of_the_documents():
    found = EngineSettings()
    assert (found.bytes, found.most_sets, found.most_cells) == (4 << 30, 4_000_000, 4_000_000_000)
    assert (found.longest_planning, configured("worker-wait"), configured("worker-answer")) == (3600, "120s", "20s")


@pytest.mark.parametrize(("key", "value"), [("memory", "much"), ("max-sets", 0), ("max-cells", "x"),
                                            ("planning-seconds", -1), ("planning-seconds", True)])  # fmt: skip
def test_value_that_cannot_be_used_is_refused(key, value):
    names = {"memory": "bytes", "max-sets": "most_sets", "max-cells": "most_cells"}
    with dask.config.set({f"dpscale.{key}": value}), pytest.raises(JobError) as caught:
        getattr(EngineSettings(), names.get(key, "longest_planning"))
    assert str(caught.value).startswith(f"dpscale.{key}: {value!r} in Dask's configuration; expected ")


def test_memory_is_no_part_of_the_identity_of_a_job(tmp_path):
    write_table(tmp_path / "data", table())
    digest = job_digest(read_job(write_job(tmp_path, engine=None)))
    with dask.config.set({"dpscale.memory": "1GiB"}):
        assert job_digest(read_job(write_job(tmp_path, engine=None))) == digest
