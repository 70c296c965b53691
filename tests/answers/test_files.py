"""Intervals in answer files: level of the job file, pointwise or simultaneous over an attribute set."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.base.errors import JobError
from dpscale.runs.answers import Labels
from tests.messages import refused
from tests.runs.small import table, write_job, write_table


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Three releases with the same noise and different interval settings."""
    place = tmp_path_factory.mktemp("intervals")
    write_table(place / "data", table())
    outputs = {"plain": {}, "level": {"level": 0.5}, "joint": {"level": 0.9, "joint": True}}
    return {
        name: dp.run(write_job(place, f"{name}.toml", output=output), place / name) for name, output in outputs.items()
    }


def read_answers(release, names):
    answers = pd.read_parquet(release.path / "answers" / f"marginal-{len(names)}")
    mine = [answers[f"attribute_{axis}"] == name for axis, name in enumerate(names, 1)]
    return answers[pd.concat(mine, axis=1).all(axis=1)].reset_index(drop=True)


@pytest.mark.parametrize(
    ("name", "level", "joint"), [("plain", 0.95, False), ("level", 0.5, False), ("joint", 0.9, True)]
)
def test_file_intervals_equal_release_table(releases, name, level, joint):
    found = read_answers(releases[name], ("age", "sex"))
    expected = releases[name].table(("age", "sex"), level=level, joint=joint)
    for column in ("estimate", "low", "high"):
        assert found[column].to_numpy() == pytest.approx(expected[column].to_numpy())


def test_interval_width_follows_level(releases):
    found = {name: read_answers(release, ("age", "sex")).iloc[0] for name, release in releases.items()}
    widths = {name: (row["high"] - row["low"]) / row["std_error"] for name, row in found.items()}
    assert widths["level"] == pytest.approx(2 * 0.67449, rel=1e-4)
    assert widths["joint"] > widths["plain"] > widths["level"]


def test_parquet_schema_describes_intervals(releases):
    schemas = {name: pq.read_schema(next(release.path.glob("answers/marginal-2/*.parquet")))
               for name, release in releases.items()}  # fmt: skip
    assert b"intervals" not in schemas["plain"].metadata
    assert b"95 %" in schemas["plain"].field("low").metadata[b"description"]
    assert schemas["joint"].metadata[b"intervals"].endswith(b"probability 0.9, all of an attribute set's together")
    assert schemas["level"].field("high").metadata[b"description"].endswith(b"probability 0.5, each by itself")
    assert schemas["joint"].names == schemas["plain"].names


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": {"name": "aim-grem"}, "reconstruct": {"errors": "none"}},
        {"reconstruct": {"method": "maxent"}},
        {"reconstruct": {"method": "maxent", "errors": "none"}},
    ],
)
def test_joint_intervals_need_linear_or_simulated_errors(tmp_path, change):
    with refused(JobError):
        dp.run(write_job(tmp_path, output={"joint": True}, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("errors", ["auto", "simulated"])
def test_joint_intervals_from_simulated_errors(tmp_path, errors):
    """An adaptive job states errors unless the job says otherwise."""
    change = {"mechanism": {"name": "aim-grem"}, "reconstruct": {"errors": errors}}
    write_table(tmp_path / "data", table())
    release = dp.run(write_job(tmp_path, output={"joint": True, "level": 0.9}, **change), tmp_path / "run")
    found, expected = read_answers(release, ("age", "sex")), release.table(("age", "sex"), joint=True, level=0.9)
    assert found["low"].to_numpy() == pytest.approx(expected["low"].to_numpy())
    schema = pq.read_schema(next(release.path.glob("answers/marginal-2/*.parquet")))
    assert b"probability about 0.9, all of" in schema.metadata[b"intervals"]
    assert ((expected["high"] - expected["low"]) / expected["std_error"]).min() > 2 * 1.645


def test_joint_intervals_of_too_many_queries_are_refused_before_run(tmp_path):
    job = write_job(tmp_path, output={"joint": True})
    (tmp_path / "domain.toml").write_text(
        'attributes.age = {kind = "coded", size = 400}\nattributes.sex = {kind = "coded", size = 300}\n'
    )
    with refused(JobError):
        dp.run(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_cells_of_nulls_have_null_labels_among_integers():
    attributes = {"a": {"kind": "integer", "low": 3, "high": 4, "nulls": "category"},
                  "b": {"kind": "integer", "low": 0, "high": 1}}  # fmt: skip
    labels = Labels(dp.Domain.from_dict({"attributes": attributes}))
    cells = [np.array([0, 2], np.int32), np.array([1], np.int32)]
    assert labels.column(["a", "b"], cells).to_pylist() == [3, None, 1]
    assert labels.column(["b"], cells[1:]).to_pylist() == [1]
