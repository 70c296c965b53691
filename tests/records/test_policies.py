"""Total policies: no value is refused, dropped rows are in no count, and a row affects only itself."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import dpscale as dp
from dpscale.engine.contribution_bounds import rows_beyond
from dpscale.engine.counting import partition_groups, plan_passes, run_pass
from dpscale.engine.schedulers import LocalEngine
from dpscale.records.encode import encode
from tests.messages import refused
from tests.records import naive
from tests.runs.small import write_job
from tests.strategies import attribute_tables, columns

TOTAL = [("clip", "category", "drop"), ("category", "drop", "category"), ("drop",) * 3, ("clip", "drop", "category")]
ENGINE = LocalEngine("synchronous")


def with_total_policies(table, policies):
    """Return the table of a domain file with policies that refuse nothing."""
    outside, nulls, unparsable = policies
    texts = table["kind"] == "categories" and isinstance(table["values"][0], str)
    outside = "category" if outside == "clip" and table["kind"] == "categories" else outside
    return {**table, "outside": outside, "nulls": nulls} | ({} if texts else {"unparsable": unparsable})


@given(st.data(), attribute_tables(), st.sampled_from(TOTAL))
def test_no_value_is_refused_under_total_policies(data, table, policies):
    table = {key: value for key, value in table.items() if key not in ("outside", "nulls", "unparsable")}
    one = dp.Domain.from_dict({"attributes": {"x": with_total_policies(table, policies)}})["x"]
    column = data.draw(columns(one))
    gone = np.zeros(len(column), dtype=bool)
    codes = encode(one, column, gone)
    assert codes.max(initial=0) < one.size
    expected = [naive.cell(one, value) for value in naive.values_of(column)]
    assert [naive.DROPPED if out else code for code, out in zip(codes.tolist(), gone, strict=True)] == expected


def test_unparsable_texts_have_their_own_policy():
    def encode_texts(**policies):
        one = dp.Domain.from_dict({"attributes": {"x": {"kind": "coded", "size": 3, **policies}}})["x"]
        gone = np.zeros(4, dtype=bool)
        codes = encode(one, pa.array(["1", "x", "9", ""]), gone).tolist()
        return one.labels, ["gone" if out else code for code, out in zip(codes, gone, strict=True)]

    assert encode_texts(outside="clip", nulls="drop", unparsable="category") == (
        [0, 1, 2, "(outside)"],
        [1, 3, 2, "gone"],
    )
    assert encode_texts(outside="clip", nulls="category", unparsable="drop") == ([0, 1, 2, None], [1, "gone", 2, 3])
    assert encode_texts(outside="category", nulls="category") == ([0, 1, 2, "(outside)", None], [1, 3, 3, 4])
    assert encode_texts(outside="category", nulls="drop", unparsable="drop")[1] == [1, "gone", 3, "gone"]
    assert encode_texts(outside="drop", nulls="drop")[1] == [1, "gone", "gone", "gone"]


def test_policies_round_trip_and_old_files_are_unchanged():
    old = {"attributes": {"x": {"kind": "coded", "size": 3, "outside": "clip", "nulls": "reject"}}}
    assert dp.Domain.from_dict(old).to_dict() == old
    new = {"attributes": {"x": {**old["attributes"]["x"], "unparsable": "drop"}}}
    assert dp.Domain.from_dict(new).to_dict() == new
    with refused(dp.DomainError):
        dp.Domain.from_dict({"attributes": {"t": {"kind": "categories", "values": ["a", "b"], "unparsable": "drop"}}})


def make_domain(**policies):
    tables = {"a": {"kind": "coded", "size": 3, **policies}, "b": {"kind": "coded", "size": 2, **policies}}
    return dp.Domain.from_dict({"attributes": tables})


DROPPING = {"outside": "drop", "nulls": "drop"}


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 9, None]), st.sampled_from([0, 1, 9, None])), max_size=12))
def test_dropped_row_is_in_no_count(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("dropped")
    for number, part in enumerate((rows[:5], rows[5:])):
        columns = {name: pa.array([row[i] for row in part], pa.int64()) for i, name in enumerate("ab")}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    domain, stay = make_domain(**DROPPING), [row for row in rows if row[0] in (0, 1, 2) and row[1] in (0, 1)]
    sets = [("a", "b"), ("a",), ("b",), ()]
    counts = dp.count_marginals(dp.Table.open(folder, domain), sets)
    for names in sets:
        assert np.array_equal(counts[names], naive.marginal(domain, stay, names))


@pytest.mark.parametrize("memory", [200, 1000, 1 << 20])
@pytest.mark.parametrize("workers", [1, 4])
def test_all_passes_and_tasks_drop_the_same_rows(tmp_path, memory, workers):
    """Passes that read only one column also exclude rows dropped by another column."""
    rng = np.random.default_rng(2)
    values = {"a": rng.integers(0, 5, 300), "b": rng.integers(0, 4, 300)}
    pq.write_table(pa.table(values), tmp_path / "x.parquet")
    domain, stay = make_domain(**DROPPING), (values["a"] < 3) & (values["b"] < 2)
    partitions = dp.Table.open(tmp_path, domain).partitions
    for one in plan_passes(domain, [("a",), ("b",), ()], memory, workers):
        handles = run_pass(ENGINE, one, partition_groups(partitions, workers), ["a", "b"])
        for layout, flat in zip(one.shards, handles, strict=True):
            for marginal in layout.marginals(flat):
                assert marginal.counts.sum() == stay.sum()


# With units


UNITS = [1, 2, 3, None]


def count_kept_rows(folder, rows, bound):
    """Return the counts of the rows (unit and values) that are counted."""
    for number, part in enumerate((rows[::2], rows[1::2])):
        names = ("unit", "a", "b")
        columns = {name: pa.array([row[i] for row in part], pa.int64()) for i, name in enumerate(names)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    domain = make_domain(**DROPPING)
    partitions = dp.Table.open(folder, domain).partitions
    out = rows_beyond(ENGINE, domain, partition_groups(partitions, 1), "unit", bound, 50, 1 << 20, drop=True)
    left = Counter()
    for part, mine in zip(partitions, (rows[::2], rows[1::2]), strict=True):
        gone = set(out[part].places.tolist()) if part in out else set()
        inside = [row for place, row in enumerate(mine) if place not in gone]
        left.update(row for row in inside if row[1] in (0, 1, 2) and row[2] in (0, 1))
    return left


@given(st.lists(st.tuples(st.sampled_from(UNITS), st.sampled_from([0, 1, 9]), st.sampled_from([0, 1, None])),
                max_size=14), st.integers(1, 3), st.sampled_from(UNITS[:3]))  # fmt: skip
def test_contribution_bound_applies_after_dropping(tmp_path_factory, rows, bound, removed):
    """Dropped rows do not use up the bound, and a unit affects only its own rows."""
    left = count_kept_rows(tmp_path_factory.mktemp("units"), rows, bound)
    assert all(row[0] is not None for row in left)
    for unit in UNITS[:3]:
        mine = [row for row in rows if row[0] == unit and row[1] != 9 and row[2] is not None]
        assert sum(count for row, count in left.items() if row[0] == unit) == min(bound, len(mine))
    without = count_kept_rows(tmp_path_factory.mktemp("without"), [row for row in rows if row[0] != removed], bound)
    assert without == Counter({row: count for row, count in left.items() if row[0] != removed})


def test_run_under_total_policies_accepts_any_value(place):
    """One table has every kind of invalid value."""
    from click.testing import CliRunner

    from dpscale.__main__ import main

    for path in (place / "data").glob("*"):
        path.unlink()
    bad = [None, "x", "-1e999", "7.5", "", "99999999999999999999", "NaN", "3"]
    table = {"person": [" 1", "1.0", None, "", "x", "0.5", "NA", "1e0"], "age": bad, "income": bad[::-1],
             "code": bad, "sex": ["F", None, "?", "M", "F", "M", "F", "M"]}  # fmt: skip
    pq.write_table(pa.table({name: pa.array(column, pa.string()) for name, column in table.items()}),
                   place / "data" / "x.parquet")  # fmt: skip
    data = {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 1,
            "unit_nulls": "drop"}  # fmt: skip
    job = write_job(place, data=data)
    import tomli_w

    from tests.runs.small import DOMAIN

    policies = {"outside": "drop", "nulls": "drop", "unparsable": "category"}
    tables = {name: table | policies for name, table in DOMAIN["attributes"].items()}
    tables["sex"] = {key: value for key, value in tables["sex"].items() if key != "unparsable"}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": tables}))
    result = CliRunner().invoke(main, ["run", str(job), "--run-dir", str(place / "run"), "--empty"])
    assert result.exit_code == 0, result.output


def test_decimals_texts_and_numbers_are_dropped_equally():
    one = dp.Domain.from_dict({"attributes": {"x": {"kind": "coded", "size": 2, "outside": "drop"}}})["x"]
    for column in (pa.array([Decimal(1), Decimal(7)]), pa.array(["1", "7"]), pa.array([1.0, 7.0]), pa.array([1, 7])):
        gone = np.zeros(2, dtype=bool)
        assert encode(one, column, gone).tolist() == [1, 0]
        assert gone.tolist() == [False, True]
