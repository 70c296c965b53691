"""Jobs with many attribute sets: few files, one schema per directory, an index; and a plan of a thousand attributes."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import tomli_w

import dpscale as dp
from dpscale.measurement.value_files import FileLayout
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.mechanisms.matrix_mechanism import FixedPlan
from dpscale.privacy.accounting import Budget
from dpscale.runs.stages import reconstruct
from tests.answered import answers_to, index_of

MANY = 40


def write_many(place: Path, attributes: int = MANY, rows: int = 500) -> Path:
    """Write a job with all pairs of four-valued attributes and some ranges."""
    rng, names = np.random.default_rng(0), [f"a{i:04d}" for i in range(attributes)]
    (place / "data").mkdir()
    pd.DataFrame({name: rng.integers(0, 4, rows) for name in names}).to_parquet(place / "data" / "0.parquet")
    domain = {"attributes": {name: {"kind": "coded", "size": 4} for name in names}}
    (place / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {
        "data": {"path": "data", "domain": "domain.toml"},
        "privacy": {"rho": 0.5, "dataset": "many"},
        "workload": [{"family": "marginal", "degree": 2}, {"family": "range", "attributes": [names[:1], names[5:7]]}],
        "mechanism": {"name": "residual-planner"},
        "engine": {"seed": 3, "scheduler": "threads"},
    }
    (place / "job.toml").write_text(tomli_w.dumps(job))
    return place / "job.toml"


@pytest.fixture(scope="module")
def many_sets_release(tmp_path_factory):
    place = tmp_path_factory.mktemp("many")
    return dp.run(write_many(place), place / "run")


def test_many_sets_are_written_to_few_files(many_sets_release):
    sets = MANY * (MANY - 1) // 2
    assert len(many_sets_release.plan.blocks) == sets + MANY + 1
    assert len(index_of(many_sets_release.path)) == sets + 2
    for folder in ("measurements", "answers"):
        assert 16 < len([path for path in (many_sets_release.path / folder).rglob("*") if path.is_file()]) < 150


def test_answers_have_one_schema_and_open_with_one_glob(many_sets_release):
    folder = many_sets_release.path / "answers" / "marginal-2"
    assert len({str(pq.read_schema(path)) for path in folder.glob("*.parquet")}) == 1
    frame = ds.dataset(folder).to_table().to_pandas()
    assert len(frame) == 16 * MANY * (MANY - 1) // 2
    assert frame.equals(pd.read_parquet(folder).astype(frame.dtypes))
    own = frame[(frame.attribute_1 == "a0003") & (frame.attribute_2 == "a0017")]
    cells = np.zeros((4, 4))
    cells[own.value_1, own.value_2] = own.estimate
    np.testing.assert_allclose(cells, many_sets_release.marginal(("a0003", "a0017")), rtol=1e-12, atol=1e-9)
    assert own.std_error.iloc[0] == pytest.approx(
        many_sets_release.answer(("a0003", "a0017"), query=np.eye(16)[5].reshape(4, 4))[1]
    )


def test_index_locates_answers_of_each_set(many_sets_release):
    for row in index_of(many_sets_release.path)[:: MANY // 2] + index_of(many_sets_release.path)[-2:]:
        own = answers_to(many_sets_release.path, row)
        assert len(own) == row["queries"]
        for axis, name in enumerate(row["attributes"], start=1):
            assert set(own[f"attribute_{axis}"]) == {name}
        assert row["rms_error"] == pytest.approx(float(np.sqrt((own.std_error**2).mean())))


def test_file_layout_does_not_change_answers(many_sets_release, monkeypatch):
    """The same release is run again with other file sizes."""
    monkeypatch.setattr(reconstruct, "FILES", 1)
    monkeypatch.setattr(reconstruct, "GROUP_ROWS", 40)
    other = dp.run(many_sets_release.path.parent / "job.toml", many_sets_release.path.parent / "cut")
    assert len(list((other.path / "answers").glob("*/*.parquet"))) <= 4
    for one, row in list(zip(index_of(many_sets_release.path), index_of(other.path), strict=True))[::40]:
        assert {**one, "file": "", "first": 0} == {**row, "file": "", "first": 0}
        ours, theirs = (
            answers_to(run, each).astype(object) for run, each in ((many_sets_release.path, one), (other.path, row))
        )
        assert ours.equals(theirs)


def test_report_of_many_sets_is_small(many_sets_release):
    """Overlapping points of a plot are drawn once."""
    assert (many_sets_release.path / "report.html").stat().st_size < 1 << 20


def make_plan(attributes):
    domain = dp.Domain({f"a{i:04d}": 4 for i in range(attributes)})
    workload = dp.Workload(domain).add("marginal", degree=2)
    made = dp.plan(workload, mechanism="residual-planner")
    return FixedPlan(made, PlanningProblem(workload, Budget("gaussian", 1.0)))


@pytest.mark.parametrize("attributes", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_all_pairs_of_many_attributes_can_be_planned(attributes):
    fixed_plan = make_plan(attributes)
    blocks, requests, pairs = (
        fixed_plan.plan.blocks,
        fixed_plan.first_decision().requests,
        list(combinations(range(attributes), 2)),
    )
    assert len(blocks) == 1 + attributes + len(pairs) == len(requests)
    assert fixed_plan.cost.gaussian <= 1
    filed = FileLayout.of(requests)
    assert len(filed.cuts) - 1 <= 130
    pick = requests[int(filed.sequence[-1])]
    assert set(pick.block.attributes) <= set(pick.source)
    names = ("a0123", "a0287")
    assert fixed_plan.plan.accuracy.residuals[names].scale > 0
    assert blocks.sets.find(names) == [1 + attributes + pairs.index((123, 287))]


@pytest.mark.slow
def test_all_pairs_of_thousand_attributes_end_to_end(tmp_path):
    release = dp.run(write_many(tmp_path, 1000, 10_000), tmp_path / "run")
    files = [path for path in release.path.rglob("*") if path.is_file()]
    assert len(files) <= 300
    assert (release.path / "report.html").stat().st_size < 3_000_000
    again = dp.Release.open(release.path)
    assert again.marginal(("a0004", "a0500")).shape == (4, 4)
