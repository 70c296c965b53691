"""Charts of the report: areas in proportion to counts, marks of estimates near 0, axes, tables in the asked order."""

import csv
import io
import re

import numpy as np
import pytest

import dpscale as dp
from dpscale.answers import tables
from dpscale.answers.report import pair, single
from dpscale.answers.report.charts import BOX_HEIGHT, BOX_WIDTH, csv_text, statistic, ticks
from tests.runs.small import table, write_job, write_table

RECTANGLE = re.compile(r"M(\d+) 100V([\d.]+)H(\d+)V100")
EDGES = (0, 1, 5, 6, 10)


def bins(edges=EDGES, **more):
    return dp.Domain.from_dict({"attributes": {"fare": {"kind": "bins", "edges": list(edges), **more}}})["fare"]


def draw(values, half, attribute, labels=None):
    names = labels or [str(label) for label in attribute.labels]
    return single(("fare",), (names,), np.array(values, float), np.array(half, float), attribute)


def test_areas_of_a_histogram_are_proportional_to_counts():
    values = np.array([500.0, 800.0, 900.0, 200.0])
    chart = draw(values, [10.0] * 4, bins())["chart"]
    boxes = [(float(a), BOX_HEIGHT - float(y), float(b)) for a, y, b in RECTANGLE.findall(chart["bars"])]
    areas = np.array([(b - a) * height for a, height, b in boxes])
    np.testing.assert_allclose(areas / areas.sum(), values / values.sum(), rtol=0.01)
    np.testing.assert_allclose([b - a for a, _, b in boxes], BOX_WIDTH * np.diff(EDGES) / 10, atol=1)
    assert chart["unit"] == "records per 1 on the axis"
    assert next(text for text, _ in chart["x"]) == "0"


def test_planted_heights_of_counts_are_detected():
    values = np.array([500.0, 800.0, 900.0, 200.0])
    heights = np.diff(EDGES) * values  # bars of counts, as wide as the bins
    assert np.abs(heights / heights.sum() - values / values.sum()).max() > 0.1


def test_cells_beyond_the_bins_are_named_beside_the_axis():
    attribute = bins(nulls="category", outside="category")
    found = draw([5, 5, 5, 5, 3, 2], [1] * 6, attribute)
    assert (found["chart"]["cells"], found["chart"]["beyond"]) == (4, 2)


@pytest.mark.parametrize("edges", [(0, 1, 2, 3), (0, 1, 2, 100_000)])
def test_equal_and_invisible_bins_have_a_bar_each(edges):
    assert draw([1, 2, 3], [0.1] * 3, bins(edges))["chart"] is None


def test_estimates_whose_interval_contains_zero_are_marked():
    found = draw([5.0, -0.5, 0.9, -3.0], [1.0] * 4, bins())
    assert found["zero"] == [False, True, True, True], "a count whose interval lies below 0 may be 0"
    assert len(RECTANGLE.findall(found["chart"]["hollow"])) == 3
    below = statistic(
        "sum", ["a", "b"], np.array([-3.0, 0.5]), np.array([-4.0, -1]), np.array([-2.0, 2]), np.ones(2), ""
    )
    assert below["zero"] == [False, True], "a sum may be negative"
    unknown = draw([5.0, 0.0, 0.9, -3.0], [np.nan] * 4, bins())
    assert not any(unknown["zero"])
    heat = pair(("a", "b"), (["0", "1"], ["0", "1"]), np.array([[1.0, 9], [3, 4]]), np.array([[2.0, 2], [3, 3]]))
    assert heat["zero"] == [[True, False], [True, False]]
    assert [[cell["half"] for cell in row] for row in heat["cells"]] == [["2", "2"], ["3", "3"]]


@pytest.mark.parametrize("top", [0.3, 1.0, 7.0, 8.5, 9_999.0, 2.5e7])
def test_axes_have_few_round_ticks_at_their_places(top):
    found = ticks(top)
    assert 3 <= len(found) <= 7
    assert found[0] == ("0", 0.0)
    for text, place in found:
        assert float(text.replace(",", "")) == pytest.approx(place * top / 100, rel=1e-3, abs=1e-9)


def test_csv_has_a_row_per_cell():
    text = csv_text(("a", "b"), (["x", "y, z"], ["1", "2"]), np.array([[1.0, 2], [3, 4]]), np.full((2, 2), 0.5))
    head, *rows = csv.reader(io.StringIO(text))
    assert head == ["a", "b", "estimate", "low", "high"]
    assert rows[2] == ["y, z", "1", "3", "2.5", "3.5"]


def test_tables_are_in_the_order_of_the_job(tmp_path):
    asked = [["code", "sex"], ["income"], ["age"], ["age", "income", "code"], ["sex"]]
    write_table(tmp_path / "data", table())
    job = write_job(tmp_path, workload=[{"family": "marginal", "attributes": asked}])
    release = dp.run(job, tmp_path / "run")
    shown = [one.names for one in tables.requested(release.answered, 9)]
    assert shown == [("sex", "code"), ("income",), ("age",), ("sex",)]
    page = (release.path / "report.html").read_text()
    places = [page.index(text) for text in ("sex (down) and code (across)", "<b>income</b>", "<caption>age")]
    assert places == sorted(places)


def test_bars_and_intervals_are_in_proportion_below_zero_too():
    values, half = np.array([30.0, -10.0, np.nan]), np.array([10.0, 5.0, np.nan])
    found = statistic("fee", ["a", "b", "c"], values, values - half, values + half, half / 2, "EUR")
    ends = np.array([-15.0, 40.0])  # of the axis
    for row, value, wide in zip(found["rows"][:2], values, half, strict=False):
        first, last = sorted([0.0, value])
        np.testing.assert_allclose(row["bar"], 100 * np.array([first - ends[0], last - first]) / 55)
        np.testing.assert_allclose(row["line"], 100 * np.array([value - wide - ends[0], 2 * wide]) / 55)
    assert [row["text"] for row in found["rows"]] == ["30.0", "−10.0", "—"]
    assert (found["rows"][2]["line"], found["rows"][2]["interval"]) == (None, "")
