"""`domain check FILE DATA` lists every fault; a run names all refused columns without values."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.errors import RefusedValue
from tests.runs.small import DOMAIN, job, table, write_job

SECRETS = ("918273", "pl4nted")


def run_command(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments])


def spoil_table(frame):
    """Plant faults in three columns and different rows: numbers and texts outside the domain, and nulls."""
    frame = frame.astype({"sex": object, "code": "Int64"})
    frame.loc[frame.index % 1000 == 7, "code"] = 918273
    frame.loc[3900, "code"] = None
    frame.loc[[50, 3000], "sex"] = ["pl4nted", None]
    frame.loc[2000, "age"] = None
    return frame


def write_partitions(folder, frame, kind, partitions=5, order=1):
    """Write a table as partitions in Parquet or CSV."""
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), partitions)):
        part, path = frame.iloc[rows], folder / f"{order * number % partitions}.{kind}"
        part.to_csv(path, index=False) if kind == "csv" else part.to_parquet(path, index=False)
    return folder


@pytest.fixture
def domain_file(tmp_path):
    (tmp_path / "d.toml").write_text(tomli_w.dumps(DOMAIN))
    return tmp_path / "d.toml"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_all_faults_are_listed_in_one_pass(tmp_path, domain_file, kind, scheduler):
    data = write_partitions(tmp_path / "data", spoil_table(table()), kind)
    result = run_command("check", "domain", domain_file, data, "--scheduler", scheduler)
    assert result.exit_code == 2
    assert "PRIVATE" in result.stderr
    assert result.stdout.splitlines() == [
        "3 of 4 columns have faults, in 4,000 rows",
        "'age': missing values, in 1 row",
        "'sex': missing values, in 1 row",
        "'sex': values outside the domain, in 1 row, for example 'pl4nted'",
        "'code': missing values, in 1 row",
        "'code': values outside the domain, in 4 rows, for example '918273'",
    ]


def test_missing_columns_and_wrong_types_are_listed(tmp_path, domain_file):
    frame = spoil_table(table())
    data = write_partitions(tmp_path / "data", frame.assign(sex=frame.index), "parquet", 2)
    frame.drop(columns=["age", "income"]).to_parquet(data / "x.parquet", index=False)
    result = run_command("check", "domain", domain_file, data, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 2
    assert (report["private"], report["rows"], report["columns"], report["columns_affected"]) == (True, 8000, 4, 4)
    found = {(one["attribute"], one["fault"].partition(";")[0]): one for one in report["faults"]}
    assert found["age", "no such column"]["files"] == found["income", "no such column"]["files"] == 1
    assert found["sex", "type int64"]["files"] == 2
    assert found["code", "values outside the domain"]["rows"] == 8
    assert found["code", "values outside the domain"]["examples"] == ["918273"]


def test_examples_are_few_and_independent_of_partitions(tmp_path):
    (tmp_path / "d.toml").write_text("[attributes.a]\nkind = 'coded'\nsize = 2\n")
    frame, faults = pd.DataFrame({"a": ["x" * 99, *map(str, range(2, 40)), "1"]}), []
    for partitions in (1, 7):
        data = write_partitions(tmp_path / str(partitions), frame, "csv", partitions)
        faults.append(json.loads(run_command("check", "domain", tmp_path / "d.toml", data, "--json").stdout)["faults"])
    assert faults[0] == faults[1]
    assert faults[0][0]["fault"] == "texts that are no number"
    assert faults[0][0]["examples"] == ["x" * 40]
    assert (faults[0][1]["rows"], len(faults[0][1]["examples"])) == (38, 5)


def test_data_without_faults_pass(tmp_path, domain_file):
    data = write_partitions(tmp_path / "data", table(), "csv")
    result = run_command("check", "domain", domain_file, data)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "0 of 4 columns have faults, in 4,000 rows"
    assert "age: integer, 8 cells" in result.stdout
    assert json.loads(run_command("check", "domain", domain_file, data, "--json").stdout)["faults"] == []


def test_data_without_domain_columns_are_refused(tmp_path, domain_file):
    data = write_partitions(tmp_path / "data", pd.DataFrame({"x;y": [1]}), "csv", 1)
    result = run_command("check", "domain", domain_file, data)
    assert result.exit_code == 2
    assert "delimiter" in result.stderr


WANTED = (
    "data columns: 'age' (a null), 'sex' (a null), 'code' (a null); expected only values that the domain file permits; "
    "set nulls of these attributes, or widen their domains "
    "(`dpscale check domain FILE DATA` shows the values; its output is private)"
)
UNIT = {"privacy_unit": "person", "max_rows_per_unit": 3}
ENGINES = [("threads", "1GiB"), ("synchronous", "1MiB"), ("processes", "1GiB")]


@pytest.mark.parametrize(("kind", "unit"), [
    ("parquet", UNIT), pytest.param("csv", {}, marks=pytest.mark.slow),
    pytest.param("csv", UNIT, marks=pytest.mark.slow), pytest.param("parquet", {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_run_names_all_refused_columns_on_every_engine(place, kind, unit):
    messages = set()
    for number, (scheduler, memory) in enumerate(ENGINES):
        write_partitions(place / f"data{number}", spoil_table(table()), kind, 3 + 2 * number, order=2)
        data = {"path": f"data{number}", "domain": "domain.toml", **unit}
        path = write_job(place, data=data, engine={"scheduler": scheduler, "memory": memory})
        result = run_command("run", path, "--run-dir", place / f"run{number}", "--quiet")
        assert result.exit_code == 2, result.output
        assert not any(secret in result.output for secret in SECRETS)
        messages.add(result.stderr)
    assert messages == {f"dpscale: {WANTED}; more: docs/domain-file.md\n"}


def test_columns_outside_workload_are_not_named(place):
    write_partitions(place / "data2", spoil_table(table()), "csv")
    data = {"path": "data2", "domain": "domain.toml"}
    path = write_job(place, data=data, workload=[{"family": "marginal", "attributes": [["sex", "income"]]}])
    result = run_command("run", path, "--run-dir", place / "run", "--quiet")
    assert result.stderr.startswith("dpscale: data column 'sex': a null; expected no nulls")


def test_counts_and_frames_name_all_refused_columns(place):
    frame = spoil_table(table()).dropna()
    data = write_partitions(place / "data2", frame, "parquet")
    names = [("code",), ("sex",)]
    with pytest.raises(RefusedValue) as caught:
        dp.count_marginals(dp.Table.open(data, dp.Domain.from_dict(DOMAIN)), names)
    reasons = "'sex' (a value outside the domain), 'code' (a value outside the domain)"
    assert str(caught.value).startswith(f"data columns: {reasons}; expected")
    write_job(place)
    privacy = {"epsilon": 1.0, "ledger": str(place / "l.sqlite"), "dataset": "d"}
    job_dict = job(data={"domain": str(place / "domain.toml")}, privacy=privacy)
    with pytest.raises(dp.DataError) as caught:
        dp.run(job_dict, place / "run", data=frame)
    assert str(caught.value).startswith(f"data columns: {reasons}; expected")


def test_name_of_an_absent_column_is_compared_with_those_of_the_data(tmp_path, domain_file):
    data = write_partitions(tmp_path / "data", table().rename(columns={"income": "incme"}), "csv")
    result = run_command("check", "domain", domain_file, data)
    assert "'income': no such column; did you mean 'incme'?, in 5 files" in result.stdout.splitlines()
