"""`domain sketch`: a draft that parses, accepts the data it was made from, and is marked as private."""

from __future__ import annotations

import datetime
import sys
import tomllib
from decimal import Decimal
from itertools import pairwise

import dask.dataframe
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings, strategies as st

import dpscale as dp
from dpscale.__main__ import main
from dpscale.records.files import Dialect
from dpscale.records.sketch import READERS, WARNING, growing_edges, make_sketch, round_edges, sketch, sketch_domain
from tests.messages import refused


def make_draft(path):
    text = sketch(str(path)).replace("reviewed = false", "reviewed = true")
    domain = dp.Domain.from_dict(tomllib.loads(text))
    assert dp.Domain.from_dict(domain.to_dict()) == domain
    return text, domain


def test_sketch_of_mixed_table(tmp_path):
    columns = {
        "n": [1, None, 7], "x": [0.5, 2.0, float("nan")], "yes": [True, False, True], "money": [Decimal("1.50")] * 3,
        "town": ["Köln", 'say "hi"', None], "code": ["01", "02", "03"], "text number": ["1", " 2", "NA"],
        "day": [datetime.date(2020, 1, 1)] * 3, "list": [[1], [2], []], "nothing": pa.nulls(3),
        "blob": [b"x", b"y", b"z"], "one": [5, 5, 5], "inf": [float("inf"), 1.0, 2.0], "big": [2**60, 2**60 + 1, 0],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    text, domain = make_draft(tmp_path / "x.parquet")
    assert {name for name in columns if name not in domain.names} == {"list", "nothing"}
    assert "# 'one' has only one value" in text
    assert (domain["yes"].kind, domain["day"].kind) == ("boolean", "date")
    kinds = {a.name: (a.kind, a.nulls) for a in domain.attributes}
    assert kinds["n"] == kinds["text number"] == ("integer", "category")
    assert kinds["town"] == ("categories", "category")
    assert kinds["code"] == ("categories", "reject")
    assert kinds["money"][0] == kinds["big"][0] == kinds["x"][0] == "bins"
    for name in domain.names:
        assert dp.count_marginals(dp.Table.open(tmp_path, domain), [(name,)])[name,].sum() == 3


def test_draft_is_marked_as_private(tmp_path):
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    text, _ = make_draft(tmp_path)
    assert "PRIVATE" in text.splitlines()[0]
    told = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert told == " ".join([WARNING, READERS, 'title = ""'])


def test_large_text_columns_are_left_out(tmp_path):
    names = [f"person {i}" for i in range(5000)]
    pq.write_table(pa.table({"name": names, "a": np.arange(5000) % 2}), tmp_path / "x.parquet", row_group_size=100)
    text, domain = make_draft(tmp_path)
    assert domain.names == ("a",)
    assert "# left out: 'name' (an id: a value for every row" in text
    assert "person" not in text


def test_columns_that_change_type_between_files(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"], "b": ["2"]}), tmp_path / "2.parquet")
    text, domain = make_draft(tmp_path)
    assert domain.names == ("b",)
    assert "numbers in one file, texts in another" in text


def test_table_without_usable_column_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a\n")
    with refused(dp.DataError):
        sketch(str(tmp_path))


def test_invalid_utf8_column_is_left_out(tmp_path):
    bad = pa.array([b"\xff5", b"1"]).view(pa.string())
    pq.write_table(pa.table({"s": bad, "a": [0, 1]}), tmp_path / "x.parquet")
    text, domain = make_draft(tmp_path)
    assert domain.names == ("a",)
    assert "not UTF-8" in text


def test_irregular_csv_is_explained(tmp_path):
    lines = [f"{n};{'unknown' if n % 40 == 0 else n};{n % 28 + 1}.0{n % 9 + 1}.2024;P{n % 150}" for n in range(400)]
    (tmp_path / "x.csv").write_text("\n".join(["number;age;day;person", *lines]))
    with refused(dp.DataError):
        sketch(str(tmp_path))
    text = sketch(str(tmp_path), Dialect(";"))
    attributes = tomllib.loads(text)["attributes"]
    assert (attributes["age"]["kind"], attributes["age"]["unparsable"]) == ("bins", "category")
    assert (attributes["day"]["by"], attributes["day"]["format"]) == ("month", "%d.%m.%Y")
    assert attributes["age"]["edges"][:2] == [0, 50]
    assert "# left out: 'number' (an id" in text
    assert "# left out: 'person' (named like an id" in text
    assert '# privacy unit, a proposal: privacy_unit = "person"' in text
    domain = dp.Domain.from_dict({"attributes": attributes})
    assert dp.count_marginals(dp.Table.open(tmp_path, domain, dialect=Dialect(";")), [("age",)])["age",].sum() == 400


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats() | st.none(), min_size=1, max_size=5), st.lists(st.text(max_size=4), min_size=5, max_size=5))
@example([sys.float_info.max], [""] * 5)
@example([1e-05], [""] * 5)
@example([2000000000.5], [""] * 5)
def test_draft_accepts_any_floats_and_texts(tmp_path_factory, floats, texts):
    path = tmp_path_factory.mktemp("sketch") / "x.parquet"
    table = pa.table({"x": pa.array(floats, pa.float64()), "s": texts[: len(floats)], "a": [0] * len(floats)})
    pq.write_table(table, path)
    _, domain = make_draft(path)
    for name in domain.names:
        counts = dp.count_marginals(dp.Table.open(path, domain), [(name,)])
        assert counts[name,].sum() == len(floats)


@pytest.mark.parametrize("revenue", [[5_000_000_000, 17], [-3.5e11, 8e11 + 0.5]])
def test_amounts_beyond_the_steps_of_sums_have_a_larger_step(tmp_path, revenue):
    pd.DataFrame({"revenue": revenue * 50, "s": ["x", "y"] * 50}).to_parquet(tmp_path / "x.parquet")
    _, domain = make_draft(tmp_path / "x.parquet")
    [number] = domain.numbers
    assert number.column == "revenue"
    assert number.low <= min(revenue) / number.unit
    assert max(revenue) / number.unit <= number.high
    assert number.unit in (10, 10_000)


def write_made_table(path, rows=300):
    """Write a CSV with the awkward features of public tables: ids, names, free text, dates as text, money, nulls."""
    rng = np.random.default_rng(3)
    days = np.datetime64("2019-01-05") + rng.integers(0, 500, rows).astype("timedelta64[D]")
    calendar = [day.astype(object) for day in days]
    columns = {
        "RideID": [f"r-{i:05}" for i in range(rows)],
        "customer": rng.integers(1000, 1080, rows),
        "Director": [f"Jane {chr(65 + i % 13)}. {chr(65 + i % 11)}ohnson" for i in range(rows)],
        "remark": [f"The driver was late and left at gate {i % 97} again" for i in range(rows)],
        "mail": [f"p{i}@example.org" for i in range(rows)],
        "zone": [f"Zone {i % 120} West" for i in range(rows)],
        "made": [f"{day:%b %d %Y}" for day in calendar],
        "paid": [f"{day.day}/{day.month}/{day.year} 10:05 PM" for day in calendar],
        "sent": [f"{day:%m/%d/%Y}" for day in calendar],
        "month": [f"{day:%Y-%m}" for day in calendar],
        "stamp": [f"{day} 08:15:00" for day in calendar],
        "fare": np.round(rng.gamma(2, 9, rows), 2),
        "gross": [None if i % 9 == 0 else round(float(x), 2) for i, x in enumerate(rng.lognormal(8, 3, rows))],
        "seats": rng.integers(1, 7, rows),
        "horsepower": ["?" if i % 50 == 3 else int(x) for i, x in enumerate(rng.integers(46, 230, rows))],
        "postcode": [f"0{i % 7}1{i % 31:02}" for i in range(rows)],
        "alone": rng.choice(["yes", "no"], rows),
        "deck": [["A", "B", None][i % 3] for i in range(rows)],
    }
    pa.csv.write_csv(pa.table({name: pa.array([None if one is None else str(one) for one in values])
                               for name, values in columns.items()}), path)  # fmt: skip
    return columns


def test_awkward_columns_of_public_tables(tmp_path):
    columns = write_made_table(tmp_path / "x.csv")
    text, domain = make_draft(tmp_path)
    omitted = {
        name: line for line in text.splitlines() for name in columns if f"'{name}'" in line and "left out" in line
    }
    reasons = {"RideID": "an id", "customer": "named like an id", "Director": "names", "remark": "free text",
               "mail": "e-mail", "zone": "more than 64 texts"}  # fmt: skip
    assert set(omitted) == set(reasons)
    assert all(reason in omitted[name] for name, reason in reasons.items())
    assert "privacy_unit = \"customer\" in [data] of the job (or 'RideID')" in text
    formats = {"made": "%b %d %Y", "paid": "%d/%m/%Y", "sent": "%m/%d/%Y", "month": "%Y-%m", "stamp": ""}
    assert {name: domain[name].format for name in formats} == formats
    assert {domain[name].kind for name in formats} == {"date"}
    assert (domain["seats"].low, domain["seats"].high) == (1, 6)
    assert domain["horsepower"].foreign == "category"
    assert domain["postcode"].kind == "text-prefix"
    assert domain["alone"].kind == "categories"
    for name in domain.names:
        assert dp.count_marginals(dp.Table.open(tmp_path, domain), [(name,)])[name,].sum() == 300


@pytest.mark.parametrize("numbers", [[3.1, 48.2], [0.02, 0.11], [-7.5, 1200], [1, 10_000_000], [0.0, 0.0], [1.5, 1.5]])
def test_edges_are_round_and_cover_the_numbers(numbers):
    edges = round_edges(*numbers)
    assert 3 <= len(edges) <= 17
    assert edges[0] <= numbers[0]
    assert edges[-1] >= numbers[1]
    steps = {Decimal(repr(b)) - Decimal(repr(a)) for a, b in pairwise(edges)}
    assert len(steps) == 1
    assert steps.pop().normalize().as_tuple().digits in {(1,), (2,), (5,)}


def test_edges_of_a_skewed_column_grow():
    sizes = np.random.default_rng(1).lognormal(8, 3, 5000)
    edges = growing_edges(sizes, float(sizes.min()), float(sizes.max()))
    assert len(edges) <= 25
    assert {str(edge)[0] for edge in edges[1:]} <= {"1", "2", "5"}
    assert np.histogram(sizes, edges)[0].max() < 0.5 * len(sizes)


def test_edges_of_integers_are_integers():
    assert all(isinstance(edge, int) for edge in round_edges(104, 622, whole=True))


def test_wide_table_has_few_lines(tmp_path):
    rng = np.random.default_rng(2)
    answers = {f"q{i}": rng.integers(1, 6, 200) for i in range(80)}
    others = {f"x{i}": np.round(rng.gamma(2, i + 1, 200), 2) for i in range(40)}
    pq.write_table(pa.table(answers | others), tmp_path / "x.parquet")
    text, domain = make_draft(tmp_path)
    assert text.count("\n") <= 150
    assert set(domain.names) == {*answers, *others}
    assert [domain[name].high for name in ("q0", "q79")] == [5, 5]


def test_chosen_columns(tmp_path):
    write_made_table(tmp_path / "x.csv")
    attributes = tomllib.loads(sketch(str(tmp_path), columns=["seats", "fare"]))["attributes"]
    assert list(attributes) == ["seats", "fare"]
    with refused(dp.DataError):
        sketch(str(tmp_path), columns=["faer"])


def test_three_commands_release_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_made_table(tmp_path / "rides.csv")
    invoke = CliRunner().invoke
    drafted = invoke(main, ["domain", "sketch", "rides.csv", "--output", "d.toml", "--job", "job.toml"])
    assert drafted.exit_code == 0, drafted.output
    again = invoke(main, ["domain", "sketch", "rides.csv", "--output", "d.toml"])
    assert (again.exit_code, "--output: d.toml, which exists" in again.stderr) == (2, True)
    unreviewed = invoke(main, ["run", "job.toml"])
    assert (unreviewed.exit_code, "reviewed" in unreviewed.stderr) == (2, True)
    draft = tmp_path / "d.toml"
    draft.write_text(draft.read_text().replace("reviewed = false", "reviewed = true"))
    assert invoke(main, ["plan", "job.toml"]).exit_code == 0
    result = invoke(main, ["run", "job.toml", "--run-dir", "release", "--scheduler", "synchronous"])
    assert result.exit_code == 0, result.output
    assert len(dp.Release.open("release").table("paid")) == 17


def test_frames_have_the_draft_of_their_file(tmp_path):
    write_made_table(tmp_path / "x.csv")
    table = pa.csv.read_csv(tmp_path / "x.csv", convert_options=pa.csv.ConvertOptions(strings_can_be_null=True))
    columns = ["customer", "made", "fare", "seats", "alone", "deck", "zone"]
    frames = [table, table.to_pandas(), polars.from_arrow(table), polars.from_arrow(table).lazy(),
              dask.dataframe.from_pandas(table.to_pandas(), npartitions=3)]  # fmt: skip
    expected = dp.sketch_domain(tmp_path / "x.csv", columns)
    for frame in frames:
        draft = dp.sketch_domain(frame, columns)
        assert draft.attributes == expected.attributes
        assert (set(draft.omitted), draft.units) == ({"customer", "zone"}, ("customer",))
    assert "p1" not in repr(expected)


def test_columns_of_several_types_are_omitted():
    draft = dp.sketch_domain(pd.DataFrame({"a": [1, 2], "b": [1, "x"]}))
    assert draft.omitted == {"b": "values of several types"}


def test_draft_of_a_frame_is_written_and_refused_until_reviewed(tmp_path):
    draft = dp.sketch_domain(pd.DataFrame({"a": [1, 2, 3]}))
    draft.write(tmp_path / "d.toml")
    with refused(dp.DomainError):
        dp.plan([["a"]], tmp_path / "d.toml", epsilon=1.0)
    with refused(dp.DomainError):
        draft.write(tmp_path / "d.toml")


def test_private_files_are_new_and_readable_by_their_owner_only(tmp_path):
    from dpscale.storage.files import write_private

    write_private(tmp_path / "draft.toml", "reviewed = false\n")
    assert (tmp_path / "draft.toml").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "draft.toml", "other")


def test_absent_column_of_a_file_without_header_shows_no_record(tmp_path):
    (tmp_path / "x.csv").write_text("43,Alice,m\n44,Bob,f\n")
    with pytest.raises(dp.DataError) as caught:
        sketch(str(tmp_path / "x.csv"), columns=["age"])
    assert "Alice" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["mrn", "USUBJID", "patno", "SEQN", "nhs_number", "caseno", "studyid", "hhid", "PID", "MRN2", "account_ref"]
)
def test_registers_of_persons_are_units(name):
    """Their numbers have the form of amounts: different lengths, and many more values than rows."""
    values = np.random.default_rng(1).choice(10**9, 300, replace=False)
    found = sketch_domain(pa.table({name: values, "age": np.arange(300) % 90}))
    assert name in found.omitted
    assert found.units == (name,)


def test_long_distinct_numbers_are_ids_and_amounts_are_not():
    source = np.random.default_rng(2)
    ids = 10**9 + source.choice(10**9, 300, replace=False)
    found = sketch_domain(pa.table({"number": ids, "salary": source.choice(90_000, 300, replace=False) + 10_000,
                                    "amount": source.integers(10, 10**7, 300)}))  # fmt: skip
    assert set(found.omitted) == {"number"}
    assert set(found.attributes) == {"salary", "amount"}


def test_amounts_are_drafted_as_numbers_with_rounded_limits(tmp_path):
    source = np.random.default_rng(3)
    table = pa.table({"fee": source.uniform(0.3, 47.8, 500), "income": [None, *source.lognormal(10, 1, 499)]})
    (tmp_path / "d.toml").write_text(sketch_domain(table).text().replace("reviewed = false", "reviewed = true"))
    domain = dp.Domain.read(tmp_path / "d.toml")
    ends = {number.name: number.ends for number in domain.numbers}
    assert ends["fee_value"] == (0, 50)
    low, high = ends["income_value"]
    assert (low, len(str(int(high)).rstrip("0")) <= 2) == (0, True)
    assert high >= max(table["income"].drop_null().to_pylist())


def test_column_without_a_name_is_told(tmp_path):
    (tmp_path / "v.csv").write_text("age,,sex\n" + "34,7,F\n56,8,M\n" * 20)
    found = make_sketch(str(tmp_path / "v.csv"))
    assert found.omitted[""] == "column 2, without a name in the header: give it one"
    assert set(found.attributes) == {"age", "sex"}


def test_draft_is_checked_and_not_released(tmp_path):
    (tmp_path / "v.csv").write_text("age,sex\n" + "34,F\n56,M\n" * 20)
    make_sketch(str(tmp_path / "v.csv")).write(tmp_path / "d.toml")
    done = CliRunner().invoke(main, ["check", "domain", str(tmp_path / "d.toml"), str(tmp_path / "v.csv")])
    assert done.exit_code == 0, done.output
    assert "0 of 2 columns have faults" in done.output
    with refused(dp.DomainError):
        dp.Domain.read(tmp_path / "d.toml")


def test_missing_text_of_numbers_is_missing_in_every_column(tmp_path):
    rows = ["age,city,income", *(f"{30 + row},{'NA' if row % 9 == 0 else 'Bern'},{'NA' if row % 7 == 0 else row}"
                                 for row in range(50))]  # fmt: skip
    (tmp_path / "visits.csv").write_text("\n".join(rows))

    draft = make_sketch(str(tmp_path / "visits.csv"))

    assert draft.attributes["city"]["values"] == ["Bern"]
    assert draft.attributes["city"]["nulls"] == draft.attributes["income"]["nulls"] == "category"
    assert any('null_values = ["NA"] in [data]' in note for note in draft.notes)

    dialect = Dialect(null_values=("NA",))
    assert make_sketch(str(tmp_path / "visits.csv"), dialect).attributes == draft.attributes


def test_text_that_no_number_misses_stays_a_value():
    draft = sketch_domain(pa.table({"region": ["NA", "EU", "AS"] * 9, "age": [30, 40, 50] * 9}))
    assert draft.attributes["region"]["values"] == ["AS", "EU", "NA"]
    assert not any("null_values" in note for note in draft.notes)


def test_texts_that_are_not_true_and_false_stay_texts():
    draft = sketch_domain(pa.table({"smoker": ["no", "yes", "no"] * 9, "ok": ["true", "false", "true"] * 9}))
    assert draft.attributes["smoker"]["values"] == ["no", "yes"]
    assert draft.attributes["ok"]["kind"] == "boolean"


@pytest.mark.parametrize("name", ["shop.db", "shop.duckdb"])
def test_file_of_a_database_is_told_its_address(name, tmp_path):
    (tmp_path / name).write_bytes(b"")
    with refused(dp.DataError):
        sketch(str(tmp_path / name))
