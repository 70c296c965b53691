"""Pages of Parquet files that would take too much memory are refused before they are unpacked."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

import dpscale as dp
from dpscale.base.errors import DataError
from dpscale.records.files import Dialect
from dpscale.records.parquet import OpenParquet
from tests.messages import refused

LONG = 20_000_000
DOMAIN = {"attributes": {"a": {"kind": "categories", "values": ["x", "y"], "outside": "category"},
                         "b": {"kind": "coded", "size": 2}}}  # fmt: skip
WRITERS = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "second version": {"use_dictionary": False, "data_page_version": "2.0"},
    "zstd": {"compression": "zstd"},
    "many pages": {"use_dictionary": False, "data_page_size": 64, "write_batch_size": 1},
}


def write(folder, **options):
    texts = ["x", "y"] * 50 + ["v" * LONG] + ["x"] * 50
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"a": texts, "b": [1] * len(texts), "unused": texts}), path, **options)
    return path


def job_of(folder, memory, sets):
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    return {"data": {"path": str(folder / "rows.parquet"), "domain": str(folder / "domain.toml")},
            "privacy": {"epsilon": 1.0, "delta": 1e-9, "ledger": str(folder / "ledger.sqlite")},
            "workload": [{"family": "marginal", "attributes": sets}], "engine": {"memory": memory}}  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS)
def test_page_beyond_the_memory_setting_is_refused_and_not_charged(tmp_path, writer):
    path = write(tmp_path, **WRITERS[writer])
    assert path.stat().st_size < LONG  # compressed
    with refused(DataError):
        dp.run(job_of(tmp_path, "128MiB", [["a"]]), tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()


def test_columns_that_are_not_read_may_have_any_page(tmp_path):
    write(tmp_path)
    assert dp.run(job_of(tmp_path, "128MiB", [["b"]]), tmp_path / "run").total().estimate > 0


def test_page_within_the_memory_setting_is_read(tmp_path):
    write(tmp_path)
    assert dp.run(job_of(tmp_path, "1GiB", [["a"]]), tmp_path / "run").total().estimate > 0


def test_large_columns_of_usual_pages_are_read(tmp_path):
    """The limit is for a page, not for a column."""
    texts = [f"{number:0200d}" for number in range(100_000)]
    pq.write_table(pa.table({"a": texts}), tmp_path / "rows.parquet", use_dictionary=False)
    source = OpenParquet(str(tmp_path / "rows.parquet"), 1 << 22)
    assert source.metadata.row_group(0).column(0).total_uncompressed_size > 1 << 22
    assert sum(map(len, source.batches(["a"]))) == len(texts)


def test_nested_columns_beside_are_not_confused(tmp_path):
    table = pa.table({"n": [[{"p": "x" * 100}] * 3] * 50, "a": ["v" * (1 << 20)] * 50})
    pq.write_table(table, tmp_path / "rows.parquet", use_dictionary=False)
    with refused(DataError):
        list(OpenParquet(str(tmp_path / "rows.parquet"), 1 << 19).batches(["a"]))


READ = r"""
import re, sys
import dpscale as dp
from dpscale.base.errors import DataError
from dpscale.records.files import Dialect
try:
    table = dp.Table.open(sys.argv[1], dp.Domain(a=["x", "y"]), dialect=Dialect(most_page=int(sys.argv[2])))
    dp.count_marginals(table, [("a",)])
except DataError as error:
    print(error.got[:30])
print(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
"""


def test_page_is_refused_before_it_is_unpacked(tmp_path):
    """Planted: with a larger limit the process takes several times the size of the page."""
    texts = ["x", "v" * 10 * LONG]
    pq.write_table(pa.table({"a": texts}), tmp_path / "rows.parquet", compression="zstd")
    assert (tmp_path / "rows.parquet").stat().st_size < 20_000
    taken = []
    for most in (10 * LONG // 2, 20 * LONG):
        command = [sys.executable, "-c", READ, tmp_path / "rows.parquet", str(most)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        taken.append(int(said[-2]) * 1024)
    assert taken[1] - taken[0] > 2 * 10 * LONG


def test_size_is_no_option_of_a_job():
    assert Dialect().most_page == 1 << 28
