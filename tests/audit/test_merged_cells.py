"""Evidence of a plan on classes of cells: each cell is in one class, so that a record changes one sum."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.evidence import bundle, sensitivities
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.plans.plan import packed
from dpscale.runs.opening import open_run
from tests.audit.forging import consistently, forge
from tests.audit.test_bundle import PASSED
from tests.messages import refused
from tests.workload.test_merging import write_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bundle of a job with predicates on 5,000 codes."""
    place = tmp_path_factory.mktemp("merged")
    write_job(place, 500, 1.0)
    dp.run(place / "job.toml", place / "run")
    return bundle.write_bundle(open_run(place / "run"), PASSED)


def classes_of(files):
    axis = next(iter(files["parts"].values()))["axes"]["zip"]
    return axis, np.array(sensitivities.unpacked(axis["classes"]))


def test_bundle_states_the_class_of_each_cell(folder):
    check_bundle(folder)


def leave_a_cell_out(files):
    axis, labels = classes_of(files)
    axis["classes"] = packed(labels[:-1])


def skip_a_class(files):
    axis, labels = classes_of(files)
    axis["classes"] = packed(np.where(labels == 0, labels.max() + 1, labels))


def merge_two_classes(files):
    axis, labels = classes_of(files)
    axis["classes"] = packed(np.where(labels == labels.max(), 0, labels))


def state_no_classes(files):
    axis, _ = classes_of(files)
    del axis["classes"]


@pytest.mark.parametrize("change", [leave_a_cell_out, skip_a_class, merge_two_classes, state_no_classes])
def test_classes_that_are_not_a_partition_of_the_cells_are_found(folder, tmp_path, change):
    with refused(JobError):
        check_bundle(forge(folder, tmp_path / "forged", consistently(change)))
