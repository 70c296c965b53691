"""Which files are the data: tables with a log, run directories, left-out files, folders that fix columns."""

import json
import os
import shutil
import subprocess
import sys
from decimal import Decimal

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.records.column_values import same_value
from dpscale.records.table import LeftOutWarning, calendar_names, find_files, hive_columns, list_files, warn_left_out
from tests.messages import refused

DOMAIN = dp.Domain(x={"kind": "coded", "size": 3})


def write(path, values=(0, 1), **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": list(values), **more}), path)
    return path


def counts(path, domain=DOMAIN, names=("x",), **options):
    return dp.count_marginals(dp.Table.open(path, domain, **options), [names])[names].tolist()


# Tables with a log


@pytest.fixture(params=["delta", "iceberg", "hudi"])
def lake(request, tmp_path):
    """Folder of a table, a data file in it, and its format."""
    root = tmp_path / "lake"
    file = write(root / "data" / "year=2024" / "part.parquet")
    if request.param == "delta":
        (root / "_delta_log").mkdir()
    elif request.param == "hudi":
        (root / ".hoodie").mkdir()
    else:
        (root / "metadata").mkdir()
        (root / "metadata" / "v1.metadata.json").write_text("{}")
    return root, file, request.param


def test_files_of_a_table_with_a_log_are_refused_at_any_level(lake):
    root, file, _ = lake
    for path in (root, root.parent, root / "data", root / "data" / "year=2024", file, f"{root}/data/*/*.parquet"):
        with refused(dp.DataError):
            dp.Table.open(path, DOMAIN)


def test_files_of_a_table_with_a_log_are_refused_through_links(lake, tmp_path):
    root, file, _ = lake
    (tmp_path / "folder").symlink_to(file.parent)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.parquet").symlink_to(file)
    for path in (tmp_path / "folder", tmp_path / "other", tmp_path / "other" / "b.parquet"):
        with refused(dp.DataError):
            dp.Table.open(path, DOMAIN)
    assert root.exists()


def test_plain_files_of_a_table_with_a_log_count_if_their_format_is_stated(lake):
    from dpscale.records.formats import Dialect

    assert counts(lake[0] / "data", dialect=Dialect(format="parquet")) == [1, 1, 0]


def test_erased_person_of_a_delta_table_is_refused_in_every_command(tmp_path):
    root = tmp_path / "lake"
    deltalake.write_deltalake(root, pa.table({"id": range(9), "x": [0] * 9}))
    deltalake.DeltaTable(root).delete("id = 7")
    (tmp_path / "d.toml").write_text('[attributes.x]\nkind = "coded"\nsize = 3\n')
    with refused(dp.DataError):
        dp.sketch_domain(str(root))
    for words in (["check", "domain", "d.toml", "lake"], ["domain", "sketch", "lake"]):
        done = subprocess.run(
            [sys.executable, "-m", "dpscale", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert 'format = "delta"' in done.stderr


def test_folder_named_metadata_without_a_log_is_no_table(tmp_path):
    write(tmp_path / "a.parquet")
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "readme.json").write_text("{}")
    assert counts(f"{tmp_path}/*.parquet") == [1, 1, 0]


# Files that are not data


def test_run_directory_below_the_data_is_left_out(tmp_path):
    (tmp_path / "a.ndjson").write_text('{"x":0}\n{"x":1}\n')
    run = tmp_path / "runs" / "1"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps({"job_sha256": ""}))
    (run / "log.jsonl").write_text('{"x":1}\n')
    for path in (tmp_path, f"{tmp_path}/**/*.*json*"):
        if "*" in str(path):
            assert [os.path.basename(file) for file in find_files([path], "ndjson")] == ["a.ndjson"]
        else:
            assert counts(path) == [1, 1, 0]
    rows = write(run / "synthetic" / "part.parquet")
    assert find_files([str(rows.parent)]) == [str(rows)]  # rows of a run may be the data of another job


def test_run_directory_inside_the_data_is_refused(tmp_path):
    write(tmp_path / "data" / "a.parquet")
    (tmp_path / "d.toml").write_text('[attributes.x]\nkind = "coded"\nsize = 3\n')
    job = {"data": {"path": str(tmp_path / "data"), "domain": str(tmp_path / "d.toml")},
           "privacy": {"epsilon": 1, "delta": 1e-6, "ledger": str(tmp_path / "l.sqlite")},
           "workload": [{"family": "marginal", "degree": 1}]}  # fmt: skip
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for place in ("data/run", "data", "data/a/run", "link/run"):
        with refused(dp.JobError):
            dp.run(job, tmp_path / place)
    assert not (tmp_path / "l.sqlite").exists()
    dp.run(job, tmp_path / "data-run")


def test_parquet_endings_of_other_programs_are_read(tmp_path):
    for name in ("a.parquet", "b.parq", "c.parquet.gzip", "d.pq", "e.snappy.parquet", "f.parquet.snappy"):
        write(tmp_path / name)
    assert counts(tmp_path) == [6, 6, 0]


def test_file_with_an_unknown_ending_that_begins_like_data_is_refused(tmp_path):
    for name in ("a.parquet", "000000_0"):
        write(tmp_path / name)
    with refused(dp.DataError):
        dp.Table.open(tmp_path, DOMAIN)


def test_other_files_are_named_with_their_number(tmp_path):
    write(tmp_path / "a.parquet")
    for number in range(7):
        (tmp_path / f"notes{number}.txt").write_text("x")
    (tmp_path / "_SUCCESS").write_text("")
    said = r"7 files beside the data left out because of the ending \(notes0.txt, .*, …\)"
    with pytest.warns(LeftOutWarning, match=said):
        assert counts(tmp_path) == [1, 1, 0]
    with pytest.warns(LeftOutWarning, match=said):
        warn_left_out(str(tmp_path))
    assert len(list_files([str(tmp_path)]).left_out) == 7


def test_plan_run_and_check_name_files_that_are_left_out(tmp_path):
    write(tmp_path / "data" / "a.parquet")
    (tmp_path / "data" / "b.csv.bak").write_text("x\n1\n")
    (tmp_path / "d.toml").write_text('[attributes.x]\nkind = "coded"\nsize = 3\n')
    (tmp_path / "job.toml").write_text(
        '[data]\npath = "data"\ndomain = "d.toml"\n[privacy]\nepsilon = 1\ndelta = 1e-6\n'
        '[[workload]]\nfamily = "marginal"\ndegree = 1\n'
    )
    for words in (["plan", "job.toml"], ["run", "job.toml"], ["check", "domain", "d.toml", "data"]):
        done = subprocess.run(
            [sys.executable, "-m", "dpscale", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("1 file beside the data left out because of the ending (b.csv.bak)") == 1


def test_glob_in_a_folder_whose_name_has_brackets(tmp_path):
    write(tmp_path / "data[1]" / "a.parquet")
    write(tmp_path / "data1" / "a.parquet", values=(2,))
    assert counts(f"{tmp_path}/data[1]/*.parquet") == [1, 1, 0]
    assert counts(f"{tmp_path}/data[0-9]/*.parquet") == [0, 0, 1]


# Columns in the names of folders


def test_folder_wins_over_an_equal_column_of_the_file(tmp_path):
    domain = dp.Domain(x=3, g={"kind": "categories", "values": ["a", "b"]}, n={"kind": "integer", "low": 0, "high": 9})
    write(tmp_path / "g=a" / "n=07" / "p.parquet", g=["a", "a"], n=[7, 7])
    write(tmp_path / "g=b" / "n=2" / "p.parquet")
    assert counts(tmp_path, domain, ("g",)) == [2, 2]
    assert counts(tmp_path, domain, ("n",)) == [0, 0, 2, 0, 0, 0, 0, 2, 0, 0]
    from dpscale.records.where import read_where

    assert counts(tmp_path, domain, ("g",), where=read_where("g = 'a'")) == [2, 0]


@pytest.mark.parametrize("value", ["b", None])
def test_column_of_a_file_that_differs_from_its_folder_is_refused(tmp_path, value):
    domain = dp.Domain(g={"kind": "categories", "values": ["a", "b"], "nulls": "category"})
    write(tmp_path / "g=a" / "p.parquet", g=["a", value])
    with refused(dp.DataError):
        counts(tmp_path, domain, ("g",))


@pytest.mark.parametrize("names", [("m", "y"), ("y", "m")])
def test_every_column_of_folder_and_file_is_compared(tmp_path, names):
    domain = dp.Domain(y={"kind": "integer", "low": 0, "high": 9}, m={"kind": "integer", "low": 0, "high": 9})
    (tmp_path / "y=1" / "m=2").mkdir(parents=True)
    pq.write_table(pa.table({"y": [1, 1], "m": [3, 2]}), tmp_path / "y=1" / "m=2" / "p.parquet")
    with refused(dp.DataError):
        counts(tmp_path, domain, names)


@pytest.mark.parametrize(("value", "text", "same"), [
    (1, "01", True), (1, "1.0", True), (Decimal("1.50"), "1.5", True), (True, "true", True), (True, "1", False),
    ("01", "1", False), (None, None, True), (None, "x", False), ("x", None, False),
])  # fmt: skip
def test_values_of_folders_are_compared_in_the_type_of_the_column(value, text, same):
    assert same_value(value, text) == same


def test_null_folder_may_be_encoded():
    file, root = "/d/g=%5F%5FHIVE_DEFAULT_PARTITION%5F%5F/h=__HIVE_DEFAULT_PARTITION__/i=a%2Fb/p.parquet", "/d"
    assert hive_columns(file, root) == (("g", None), ("h", None), ("i", "a/b"))


@pytest.mark.parametrize(("fixed", "expected"), [
    ([("year", "2024"), ("month", "01")], "2024-01"),
    ([("year", "2024"), ("month", "1")], "2024-01"),
    ([("month", "2024-1")], "2024-01"),
    ([("month", "2024-01")], "2024-01"),
    ([("month", "01")], "01"),
    ([("region", "7"), ("month", "01")], "01"),
    ([("month", None)], None),
])  # fmt: skip
def test_folders_of_year_and_month_state_a_month(fixed, expected):
    assert dict(calendar_names(tuple(fixed), {"month"}))["month"] == expected
    assert calendar_names(tuple(fixed), set()) == tuple(fixed)


def test_folders_of_year_month_and_day_state_a_day(tmp_path):
    domain = dp.Domain(day={"kind": "date", "by": "day", "low": "2024-02-28", "high": "2024-03-01"})
    for folder in ("year=2024/month=2/day=29", "year=2024/month=03/day=1"):
        write(tmp_path / folder / "p.parquet")
    assert counts(tmp_path, domain, ("day",)) == [0, 2, 2]


def test_month_below_year_stays_a_number_for_an_attribute_of_numbers(tmp_path):
    domain = dp.Domain(month={"kind": "integer", "low": 1, "high": 12})
    write(tmp_path / "year=2024" / "month=03" / "p.parquet")
    assert counts(tmp_path, domain, ("month",)) == [0, 0, 2, *[0] * 9]


UNREADABLE = """
import sys
import dpscale as dp
from dpscale.base.errors import DataError
for path in sys.argv[1:]:
    try:
        print(sum(dp.count_marginals(dp.Table.open(path, dp.Domain(a=3)), [("a",)])["a",].tolist()))
    except DataError as error:
        print(error)
"""


def test_folder_that_cannot_be_listed_is_named(tmp_path):
    """A glob omits such a folder, and the rows in it, without a word."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() or setpriv is None:
        pytest.skip("needs a user with other rights than the tests")
    for name in ("north", "south"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "rows.csv").write_text("a\n1\n2\n")
    paths = ["data", "data/*/*.csv", "data/north/rows.csv", "data/north/*.csv", "data/**/*.csv", "data/south/*.csv"]
    limited = [setpriv, "--bounding-set", "-dac_override,-dac_read_search", sys.executable, "-c", UNREADABLE]
    command = [*limited, *(str(tmp_path / path) for path in paths)]
    said = []
    for mode in (0o755, 0o000, 0o444):
        (tmp_path / "data/north").chmod(mode)
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        said.append(found.stdout.splitlines())
    (tmp_path / "data/north").chmod(0o311)  # may be entered, not listed
    named = [*limited, str(tmp_path / "data/*/rows.csv")]
    assert subprocess.run(named, capture_output=True, text=True, check=True, timeout=300).stdout == "4\n"
    (tmp_path / "data/north").chmod(0o755)
    assert said[0] == ["4", "4", "2", "2", "4", "2"]
    for lines in said[1:]:
        assert lines[-1] == "2"
        assert all("north cannot be listed" in line or "cannot be read" in line for line in lines[:-1]), "\n".join(
            lines
        )
