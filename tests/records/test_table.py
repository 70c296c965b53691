"""Opening of tables: files, directories, globs, hive directories, irregular files and broken files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.records import delimited, files, parquet, table
from dpscale.records.judging import faults_of
from dpscale.records.origin import snapshot
from dpscale.runs.preflight import check_table
from tests.messages import refused

AB = dp.Domain({"a": 4, "b": 3})
ADULT = Path(__file__).parents[3] / "shared" / "data" / "adult"


def write(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


def count_cells(path, domain=AB, names=("a",)):
    return dp.count_marginals(dp.Table.open(path, domain), [names])[names].tolist()


def test_file_directory_glob_and_list_give_one_table(tmp_path):
    write(tmp_path / "t" / "x.parquet", {"a": [0, 1]})
    write(tmp_path / "t" / "deep" / "er" / "y.pq", {"a": [1, 3]})
    write(tmp_path / "t" / "z.PARQUET", {"a": [1]})
    everything = [1, 3, 0, 1]
    assert count_cells(tmp_path / "t") == everything
    assert count_cells(str(tmp_path / "t" / "**" / "*.*")) == everything
    assert (
        count_cells([tmp_path / "t" / "deep", tmp_path / "t" / "*.parquet", tmp_path / "t" / "z.PARQUET"]) == everything
    )
    assert count_cells([tmp_path / "t", tmp_path / "t" / "x.parquet"]) == everything, "a file twice is one file"
    assert count_cells(tmp_path / "t" / "x.parquet") == [1, 1, 0, 0]


def test_glob_of_directories(tmp_path):
    for year in (2019, 2020):
        write(tmp_path / f"year={year}" / "x.parquet", {"a": [1]})
    domain = dp.Domain.from_dict({"attributes": {"year": {"kind": "integer", "low": 2018, "high": 2020}}})
    assert count_cells(tmp_path / "year=*", domain, ("year",)) == [0, 1, 1]


def test_hidden_files_are_ignored_unless_named(tmp_path):
    write(tmp_path / "x.parquet", {"a": [0]})
    for name in ("_x.parquet", ".x.parquet", "_temporary/0/x.parquet", ".git/x.parquet"):
        write(tmp_path / name, {"a": [3]})
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "README.txt").write_text("")
    write(tmp_path / "_kind=1" / "x.parquet", {"a": [2]})
    assert count_cells(tmp_path) == [1, 0, 1, 0]
    assert count_cells(tmp_path / "_x.parquet") == [0, 0, 0, 1]


def test_link_cycles_are_not_counted_twice(tmp_path):
    write(tmp_path / "t" / "x.parquet", {"a": [0]})
    (tmp_path / "t" / "loop").symlink_to(tmp_path / "t")
    assert count_cells(tmp_path / "t") == [1, 0, 0, 0]


def test_directory_with_name_of_a_file(tmp_path):
    write(tmp_path / "t" / "out.parquet" / "part-0.parquet", {"a": [2]})
    assert count_cells(tmp_path / "t") == [0, 0, 1, 0]
    assert count_cells(tmp_path / "t" / "out.parquet") == [0, 0, 1, 0]


def test_hive_columns_of_all_kinds(tmp_path):
    domain = dp.Domain.from_dict({"attributes": {
        "year": {"kind": "integer", "low": 2019, "high": 2021},
        "town": {"kind": "categories", "values": ["Köln/Bonn", "Ulm"], "nulls": "category"},
        "a": {"kind": "coded", "size": 4},
    }})  # fmt: skip
    write(tmp_path / "year=2019" / "town=K%C3%B6ln%2FBonn" / "x.parquet", {"a": [0, 1]})
    write(tmp_path / "year=2021" / "town=__HIVE_DEFAULT_PARTITION__" / "x.parquet", {"a": [3]})
    counts = dp.count_marginals(dp.Table.open(tmp_path, domain), [("year", "town"), ("town", "a", "year")])
    assert counts["year", "town"].tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert counts["town", "a", "year"].sum() == 3
    assert counts["town", "a", "year"][2, 3, 2] == 1


@pytest.mark.parametrize("below", [".", "year=2020", "year=2020/x.parquet", "year=2020/*.parquet"])
def test_hive_column_exists_for_any_path_form(tmp_path, below):
    write(tmp_path / "t" / "year=2020" / "x.parquet", {"a": [0, 1]})
    domain = dp.Domain.from_dict({"attributes": {"year": {"kind": "integer", "low": 2019, "high": 2020}}})
    assert count_cells(str(tmp_path / "t" / below), domain, ("year",)) == [0, 2]


def test_files_of_a_table_may_have_different_schemas(tmp_path):
    write(tmp_path / "1.parquet", {"a": pa.array([0, 1], pa.int8()), "b": pa.array([2, 2], pa.uint64())})
    write(tmp_path / "2.parquet", {"b": pa.array([1.0]), "extra": ["x"], "a": pa.array(["3"])})
    write(tmp_path / "3.parquet", {"a": pa.array([2]).dictionary_encode(), "b": pa.array([0], pa.decimal128(4, 1))})
    write(tmp_path / "4.parquet", {"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})
    assert count_cells(tmp_path, names=("a", "b")) == [[0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "5.csv").write_text("b,extra,a\n0,x,1\n")
    (tmp_path / "t" / "6.csv").write_text("a,b\n")
    assert count_cells(tmp_path / "t", names=("a", "b"))[1] == [1, 0, 0]


def test_dictionaries_may_differ_by_row_group_and_file(tmp_path):
    domain = dp.Domain.from_dict({"attributes": {"a.b": {"kind": "categories", "values": list("wxyz")}}})
    for file, kind in enumerate((pa.string(), pa.large_string())):
        schema = pa.schema([("a.b", kind), ("a", pa.struct([("b", pa.int8())]))])
        with pq.ParquetWriter(tmp_path / f"{file}.parquet", schema) as writer:
            for texts in (["z"], [], ["w", "z"], ["x", "w"]):
                columns = {"a.b": pa.array(texts, kind), "a": [{"b": 1}] * len(texts)}
                writer.write_table(pa.table(columns, schema=schema))
    assert count_cells(tmp_path, domain, ("a.b",)) == [4, 2, 0, 4]


def test_empty_row_groups_and_split_files_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "SPLIT_BYTES", 1)
    monkeypatch.setattr(table, "SPLIT_ROWS", 10)
    codes = np.random.default_rng(1).integers(0, 4, 1000)
    write(tmp_path / "huge.parquet", {"a": codes}, row_group_size=7)
    with pq.ParquetWriter(tmp_path / "gaps.parquet", pa.schema([("a", pa.int64())])) as writer:
        for rows in ([], [1], [], [2, 2], []):
            writer.write_table(pa.table({"a": pa.array(rows, pa.int64())}))
    for tiny in range(5):
        write(tmp_path / f"tiny{tiny}.parquet", {"a": [tiny % 4]})
    opened = dp.Table.open(tmp_path, AB)
    parts = opened.split()
    assert len(parts.partitions) > 70
    assert len(parts.files) == 7
    whole = dp.count_marginals(opened, [("a",)])["a",]
    assert np.array_equal(dp.count_marginals(parts, [("a",)])["a",], whole)
    assert whole.sum() == 1008
    assert sum(part.size() for part in parts.partitions) <= sum(part.size() for part in opened.partitions)


def test_batch_and_block_size_do_not_matter(tmp_path, monkeypatch):
    codes = np.random.default_rng(2).integers(0, 3, 500)
    write(tmp_path / "x.parquet", {"a": codes, "b": codes.astype(str)}, row_group_size=60)
    (tmp_path / "y.csv").write_text("a,b\n" + "".join(f"{code},{code}\n" for code in codes))
    whole = [count_cells(tmp_path / name, names=("a", "b")) for name in ("x.parquet", "y.csv")]
    assert np.array_equal(whole, [np.diag([*np.bincount(codes), 0])[:, :3]] * 2)
    monkeypatch.setattr(files, "BATCH_ROWS", 13)
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    assert [count_cells(tmp_path / name, names=("a", "b")) for name in ("x.parquet", "y.csv")] == whole


def test_opening_many_partitions_reads_no_file(tmp_path, monkeypatch):
    template = tmp_path / "template.parquet"
    write(template, {"a": [1, 2]})
    content = template.read_bytes()
    for group in range(40):
        folder = tmp_path / "t" / f"b={group % 3}" / f"g={group}"
        folder.mkdir(parents=True)
        for number in range(50):
            (folder / f"{number}.parquet").write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "read_metadata", None)
        patch.setattr(parquet, "OpenParquet", None)
        opened = dp.Table.open(tmp_path / "t", AB).split()
    assert len(opened.partitions) == 2000
    assert dp.count_marginals(opened, [("a", "b")])["a", "b"].sum() == 4000
    assert len(snapshot(opened)) == 64


def test_counting_reads_each_footer_once(tmp_path, monkeypatch):
    for number in range(3):
        write(tmp_path / f"{number}.parquet", {"a": [1], "b": ["1"]})
    read, footers = pq.read_metadata, []
    monkeypatch.setattr(pq, "read_metadata", lambda where, **options: footers.append(where.size()) or read(where))
    opened = dp.Table.open(tmp_path, AB).split()
    assert footers == []
    sets = [("a",), ("b",), ("a", "b")]
    names = opened.domain.names
    from dpscale.counting.count import Layout, count

    count(Layout(AB, tuple(sets)), opened.partitions, names)
    assert footers == [(tmp_path / f"{number}.parquet").stat().st_size for number in range(3)]


def test_only_counted_columns_are_read(tmp_path):
    write(tmp_path / "x.parquet", {"a": [1], "b": ["not in the domain"]})
    assert count_cells(tmp_path / "x.parquet") == [0, 1, 0, 0]
    assert count_cells(tmp_path / "x.parquet", names=()) == 1


# CSV: each text is judged alone


CSV_DOMAIN = dp.Domain.from_dict({"attributes": {
    "code": {"kind": "categories", "values": ["01", "1", "NA"], "nulls": "category"},
    "n": {"kind": "integer", "low": 0, "high": 9, "nulls": "category"},
    "x": {"kind": "bins", "edges": [0, 0.5, 1], "outside": "clip", "nulls": "category"},
}})  # fmt: skip


def test_csv_texts_are_not_parsed_as_numbers(tmp_path):
    (tmp_path / "x.csv").write_text("code,n,x\n01,1,0\n1,1,0.5\n1,1,1\nNA,1,NaN\n,,\n")
    assert count_cells(tmp_path / "x.csv", CSV_DOMAIN, ("code",)) == [1, 2, 1, 1]
    assert count_cells(tmp_path / "x.csv", CSV_DOMAIN, ("x",)) == [1, 2, 2]


def test_csv_types_do_not_depend_on_other_rows(tmp_path, monkeypatch):
    rows = ["01,,", "1,3,0.25", ",7,1e9", "NA,NA,", "1, 4 ,null", '"1","5","inf"']
    for size, name in ((64, "small"), (1 << 24, "large")):
        monkeypatch.setattr(delimited, "BLOCK_BYTES", size)
        (tmp_path / f"{name}.csv").write_text("code,n,x\n" + "\n".join(rows * 20) + "\n")
        for names in (("code",), ("n",), ("x",)):
            alone = np.zeros(CSV_DOMAIN.shape(names), dtype=int)
            for row in rows:
                (tmp_path / "one.csv").write_text(f"code,n,x\n{row}\n")
                alone += count_cells(tmp_path / "one.csv", CSV_DOMAIN, names)
            assert count_cells(tmp_path / f"{name}.csv", CSV_DOMAIN, names) == (20 * alone).tolist()


def test_csv_blanks_byte_order_mark_and_line_breaks(tmp_path):
    domain = dp.Domain.from_dict({"attributes": {
        "size of town": {"kind": "categories", "values": ["a b", "two\nlines", "c,d"], "nulls": "category"},
        "n": {"kind": "coded", "size": 3},
    }})  # fmt: skip
    text = '\ufeff size of town , n\r\n a b ,1\r\n"two\nlines", 2\r\n"c,d",0\r\n   ,1\r\n'
    (tmp_path / "x.csv").write_bytes(text.encode())
    assert count_cells(tmp_path / "x.csv", domain, ("size of town",)) == [1, 1, 1, 1]


@pytest.mark.skipif(not ADULT.exists(), reason="needs the Adult data at ../shared/data/adult")
def test_raw_adult_csv_with_blanks(tmp_path):
    raw = (ADULT / "raw" / "adult.data").read_text()
    (tmp_path / "raw.csv").write_text(raw)
    domain = dp.Domain.from_dict({"attributes": {
        "sex": {"kind": "categories", "values": ["Female", "Male"]},
        "workclass": {"kind": "categories", "values": ["Private", "?"], "outside": "category"},
        "age": {"kind": "integer", "low": 17, "high": 84, "outside": "clip"},
    }})  # fmt: skip
    lines = [line.split(", ") for line in raw.splitlines()[1:] if line]
    expected = np.zeros(domain.shape(domain.names), dtype=int)
    for line in lines:
        work = {"Private": 0, "?": 1}.get(line[1], 2)
        expected[["Female", "Male"].index(line[9]), work, min(int(line[0]), 84) - 17] += 1
    assert np.array_equal(count_cells(tmp_path / "raw.csv", domain, domain.names), expected)


# What is refused


PLANTED = "pl4nted-secret"


def refusal_text(path, domain=AB, names=("a",)):
    with pytest.raises(dp.DataError) as caught:
        count_cells(path, domain, names)
    return str(caught.value)


def test_missing_column_names_the_file_and_only_domain_columns(tmp_path):
    write(tmp_path / "1.parquet", {"a": [1], "b": [1]})
    write(tmp_path / "2.parquet", {"a": [1], PLANTED: [1]})
    text = refusal_text(tmp_path, names=("b",))
    assert "no column 'b'" in text
    assert "2.parquet" in text
    assert PLANTED not in text
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "3.csv").write_text(f"{PLANTED},b\n1,1\n")
    text = refusal_text(tmp_path / "t")
    assert "of the domain's it has b" in text
    assert PLANTED not in text


@pytest.mark.parametrize("name", ["truncated.parquet", "garbage.parquet", "empty.parquet", "empty.csv", "ragged.csv",
                                  "latin.csv", "twice.csv", "twice.parquet"])  # fmt: skip
def test_broken_file_is_named_without_content(tmp_path, name):
    good = tmp_path / "good.parquet"
    write(good, {"a": [1], "s": [PLANTED]})
    content = {
        "truncated.parquet": good.read_bytes()[:-9],
        "garbage.parquet": PLANTED.encode() * 9,
        "empty.parquet": b"",
        "empty.csv": b"",
        "ragged.csv": f"a,s\n1,2,{PLANTED}\n".encode(),
        "latin.csv": f"a,s\n1,{PLANTED}\n\xe9,1\n".encode("latin-1"),
        "twice.csv": b"a,a\n1,1\n",
    }
    if name == "twice.parquet":
        pq.write_table(pa.table([[1], [1]], names=["a", "a"]), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content[name])
    if name.endswith(".csv"):
        good.unlink()
    text = refusal_text(tmp_path)
    assert name in text
    assert PLANTED not in text


def test_damaged_page_is_detected_when_read(tmp_path):
    path = tmp_path / "page.parquet"
    write(path, {"a": np.arange(5000) % 4}, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    assert "page.parquet" in refusal_text(tmp_path)


def test_missing_or_unsupported_file_is_refused(tmp_path):
    assert "no file at" in refusal_text(tmp_path)
    assert "no file at" in refusal_text(str(tmp_path / "*.parquet"))
    (tmp_path / "x.json").write_text("{}")
    assert "Parquet, CSV, TSV, Arrow or NDJSON files" in refusal_text(tmp_path / "x.json")


def test_row_bound_is_an_upper_bound_and_names_broken_file(tmp_path):
    write(tmp_path / "x.parquet", {"a": [1, 2, 3]})
    (tmp_path / "x.CSV").write_text("a\n1\n2\n")
    assert table.Partition(str(tmp_path / "x.parquet")).row_bound() == 3
    assert table.Partition(str(tmp_path / "x.CSV")).row_bound() >= 2
    (tmp_path / "y.parquet").write_bytes(PLANTED.encode())
    with refused(dp.DataError):
        table.Partition(str(tmp_path / "y.parquet")).row_bound()


# One table, once


def test_parquet_and_csv_together_are_refused(tmp_path):
    write(tmp_path / "x.parquet", {"a": [1]})
    (tmp_path / "x.csv").write_text("a\n1\n")
    text = refusal_text(tmp_path)
    assert "Parquet and CSV files together" in text
    assert "FOLDER/*.parquet" in text
    assert refusal_text([tmp_path / "x.csv", tmp_path / "x.parquet"]) == text
    assert count_cells(tmp_path / "*.parquet") == count_cells(tmp_path / "x.csv") == [0, 1, 0, 0]


@pytest.mark.parametrize("way", ["hard", "symbolic", "folder"])
def test_linked_files_are_refused_unless_allowed(tmp_path, way):
    write(tmp_path / "t" / "year=1" / "x.parquet", {"a": [1]})
    first, second = tmp_path / "t" / "year=1" / "x.parquet", tmp_path / "t" / "year=2" / "x.parquet"
    if way == "folder":
        (tmp_path / "t" / "copies").mkdir()
        (tmp_path / "t" / "copies" / "x.parquet").symlink_to(first)
        second = tmp_path / "t" / "copies" / "x.parquet"
    else:
        second.parent.mkdir()
        second.hardlink_to(first) if way == "hard" else second.symlink_to(first)
    text = refusal_text(tmp_path / "t")
    assert "are the same file" in text
    assert "links = true" in text
    assert str(first) in text
    assert str(second) in text
    opened = dp.Table.open(tmp_path / "t", AB, links=True)
    assert dp.count_marginals(opened, [("a",)])["a",].tolist() == [0, 2, 0, 0]


def test_single_link_is_a_file(tmp_path):
    write(tmp_path / "kept" / "x.parquet", {"a": [1]})
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x.parquet").symlink_to(tmp_path / "kept" / "x.parquet")
    (tmp_path / "t" / "y.parquet").symlink_to(tmp_path / "nowhere.parquet")
    (tmp_path / "t" / "y.parquet").unlink()
    assert count_cells(tmp_path / "t") == [0, 1, 0, 0]


def test_files_without_inode_numbers_are_distinguished_by_path(tmp_path, monkeypatch):
    import os

    for name in ("x.parquet", "y.parquet"):
        write(tmp_path / name, {"a": [1]})
    found = os.stat
    monkeypatch.setattr(table.os, "stat", lambda path, **more: os.stat_result([0, 0, *found(path, **more)[2:10]]))
    table.check_links([str(tmp_path / "x.parquet"), str(tmp_path / "y.parquet")])
    (tmp_path / "z.parquet").symlink_to(tmp_path / "y.parquet")
    with refused(dp.DataError):
        table.check_links([str(tmp_path / "y.parquet"), str(tmp_path / "z.parquet")])


def test_job_with_links_accepts_linked_files(place):
    from tests.runs.small import job, write_job

    (place / "data" / "again.parquet").hardlink_to(place / "data" / "part-0000.parquet")
    write_job(place)
    content = job(data={"path": str(place / "data"), "domain": str(place / "domain.toml")})
    content["privacy"]["ledger"] = str(place / "ledger.sqlite")
    with refused(dp.DataError):
        dp.run(content, place / "run")
    content["data"]["links"] = True
    assert dp.run(content, place / "asked").manifest["stages"]["report"]["state"] == "done"


def test_wide_files_are_opened_once(tmp_path, monkeypatch):
    """The types of all columns come from one footer; a footer of many columns takes long to read."""
    names = [f"a{i}" for i in range(30)]
    pq.write_table(pa.table(dict.fromkeys(names, pa.array([0, 1]))), tmp_path / "part.parquet")
    domain = dp.Domain(dict.fromkeys(names, 2))
    opened_table = dp.Table.open(tmp_path / "part.parquet", domain)
    opened, read = [], parquet.footer
    monkeypatch.setattr(parquet, "footer", lambda *arguments: opened.append(1) or read(*arguments))
    check_table(opened_table, names)
    assert len(opened) == 2  # names, then types
    opened.clear()
    assert not faults_of(opened_table.partitions[0], domain).tallies
    assert len(opened) == 3  # names, types, values
