"""Sums and means of numbers in the comparison equal those of pandas on the clipped columns of rows and data."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.engine.schedulers import LocalEngine
from dpscale.evaluation import compare
from dpscale.evaluation.inputs import ComparedTable, names_of, open_data, open_rows
from dpscale.evaluation.marginals import choose_number_sets, compare_numbers, number_plot
from dpscale.runs.opening import open_part
from dpscale.runs.table import TablePart
from tests.messages import refused
from tests.numbers.small import NUMBERS, make_frame, rounded, write_job

WORKLOAD: list[dict[str, Any]] = [
    {"family": "marginal", "degree": 2},
    {"family": "sum", "of": "pay", "attributes": [["a"], ["a", "b"]]},
    {"family": "mean", "of": "wait", "attributes": [["b"], []]},
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    dp.run(write_job(folder, WORKLOAD, synthesize={"rows": 900, "parts": 2}), run_dir=folder / "run")
    return folder


def open_tables(place: Path) -> tuple[TablePart, ComparedTable, ComparedTable]:
    run = open_part(place / "run")
    rows = open_rows(run)
    return run, open_data(run, [str(place / "data")], [*names_of(rows), *NUMBERS]), rows


def numbers_of(place: Path, workers: int = 1) -> dict[str, Any]:
    run, data, rows = open_tables(place)
    chosen = choose_number_sets(run.workload, rows, names_of(rows), 1 << 30)
    with_engine = LocalEngine("synchronous") if workers == 1 else LocalEngine("threads", workers=workers)
    return compare_numbers(with_engine, chosen, data, rows, names_of(rows), "release")


def clipped_frame(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    values = [None if one is None else float(one) for one in rounded(frame[name].tolist(), NUMBERS[name])]
    return frame.assign(value=pd.Series(values, dtype=float, index=frame.index))


@pytest.mark.parametrize("name", ["pay", "wait"])
def test_distances_equal_those_of_pandas(place: Path, name: str) -> None:
    found = numbers_of(place)[name]
    data = clipped_frame(make_frame(), name)
    rows = dp.Release.open(place / "run").synthetic().compute().rename(columns={name: "value"})
    assert [one["attributes"] for one in found["sets"]] == ([[], ["a"], ["a", "b"]] if name == "pay" else [[], ["b"]])
    for one in found["sets"]:
        by = one["attributes"] or [np.zeros(len(data), int)]
        own = one["attributes"] or [np.zeros(len(rows), int)]
        sums, drawn = data.groupby(by).value.sum() / len(data), rows.groupby(own).value.sum() / len(rows)
        assert one["sums"] == pytest.approx((sums - drawn).abs().sum() / sums.abs().sum())
        means, counts = data.groupby(by).value.mean(), data.groupby(by).value.count()
        gaps = (means - rows.groupby(own).value.mean()).abs()
        assert one["means"] == pytest.approx((gaps * counts).sum() / counts.sum())
        assert one["groups"] == len(means)
        if one["attributes"]:
            assert one["worst"][0]["data"] / len(data) == pytest.approx(sums[(sums - drawn).abs().idxmax()])
        assert 0 < one["sums_halves"] < 0.6
    assert found["values"]["data"] == pytest.approx(data.value.notna().mean())
    assert found["values"]["rows"] == pytest.approx(rows.value.notna().mean())


def test_halves_are_two_parts_of_the_data(place: Path) -> None:
    """The difference of the halves' means is that of about √(1/n₁ + 1/n₂) standard deviations."""
    total = numbers_of(place)["pay"]["sets"][0]
    deviation = make_frame().pay.clip(-20, 100).std()
    assert total["means_halves"] < 5 * deviation * (2 / 300) ** 0.5


def test_results_do_not_depend_on_the_division_of_work(place: Path) -> None:
    assert json.dumps(numbers_of(place)) == json.dumps(numbers_of(place, workers=2))


def test_large_steps_are_summed_exactly() -> None:
    from dpscale.evaluation.marginals import _add

    flat, steps = np.zeros(2, np.int64), np.array([(1 << 31) - 1] * 3 + [5], np.int64)
    domain = dp.Domain({"a": 2})
    _add(domain, ((),), flat, {}, steps)
    assert flat.tolist() == [4, int(sum(Fraction(int(one)) for one in steps))]


def test_sets_beyond_the_memory_are_counted_as_omitted(place: Path) -> None:
    run, _, rows = open_tables(place)
    chosen = choose_number_sets(run.workload, rows, names_of(rows), 8 * 4 * 16 * 6)
    assert [(one.number.name, len(one.sets), one.omitted) for one in chosen] == [("pay", 2, 1), ("wait", 2, 0)]


def test_page_and_figures_have_the_numbers(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    page = compare(place / "run", place / "data", tmp_path / "out").read_text()
    found = json.loads((tmp_path / "out/compare.json").read_text())
    assert found["numbers"]["pay"]["sets"][1]["attributes"] == ["a"]
    assert "<h2>Sums and means</h2>" in page
    assert "<td>all records</td>" in page
    assert found["private"] in page
    assert {path.name for path in (place / "run").rglob("compare*")} == set()


def test_rows_without_the_column_of_a_number_are_compared_as_before(place: Path) -> None:
    """Rows of older versions have no numbers."""
    folder = place / "run/synthetic"
    before = {path: path.read_bytes() for path in folder.glob("*.parquet")}
    try:
        for path in before:
            pd.read_parquet(path).drop(columns="pay").to_parquet(path, index=False)
        run = open_part(place / "run")
        index = json.loads((folder / "_rows.json").read_text())
        from dpscale.evaluation.inputs import Origin, _open_table

        rows = _open_table("rows", [folder / name for name in index["files"]], run, Origin(True))
        assert [one.name for one in rows.domain.numbers] == ["wait"]
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def test_data_without_the_column_of_a_number_are_refused(place: Path, tmp_path: Path) -> None:
    make_frame().drop(columns="pay").to_parquet(tmp_path / "data.parquet")
    run, _, rows = open_tables(place)
    with refused(dp.DataError):
        open_data(run, [str(tmp_path / "data.parquet")], [*names_of(rows), *NUMBERS])


def test_plot_has_a_panel_for_each_number_and_plain_texts() -> None:
    name = "<b>$x_1$"
    drawn = number_plot({name: {"data": [1.0, 2.0], "rows": [1.5, 2.0]}, "none": {"data": [], "rows": []}})
    assert f"mean {name}" in "".join(ElementTree.fromstring(drawn).itertext())
    assert "mean none" not in drawn
    assert number_plot({}) == ""
