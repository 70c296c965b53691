"""The report of several tables: its figures against the files, and planted faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpscale as dp
from dpscale.runs.charge import cost_of_entry, parts_of_entry
from dpscale.runs.links.report import ReleasedLink
from tests.links.small import write_job
from tests.running import linked


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, plots_of_module: None) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    return dp.run(write_job(folder), folder / "run").path


def released_links(run: Path) -> dict[str, ReleasedLink]:
    opened = linked(run)
    return {link.called: ReleasedLink(opened, link) for link in opened.job.link}


def test_link_summary_equals_files(shop: Path) -> None:
    summary = {one["name"]: one for one in json.loads((shop / "synthetic/_links.json").read_text())}
    found = {name: frame.compute() for name, frame in dp.Release.open(shop).synthetic().items()}
    each = found["orders"].person.value_counts().reindex(found["persons"].id).fillna(0)
    assert summary["orders"]["degrees"]["parent"] == {"rows": len(each), "mean": pytest.approx(each.mean()),
                                                   "most": each.max()}  # fmt: skip
    assert summary["ratings"]["links"] == len(found["ratings"])
    assert all(one["whole"] for one in summary.values())
    assert all(0 < one["expected"] <= 1 for one in summary.values())


def test_page_has_degree_plots_and_no_external_links(shop: Path) -> None:
    page = (shop / "report.html").read_text()
    assert page.count("<svg") == 2  # of homes, whose parents have any number, none is measured
    assert "{{" not in page
    for word in (
        "http-equiv",
        "http://www.w3.org",
        "http://purl.org",
        "http://creativecommons.org",
        "https://matplotlib.org",
    ):
        page = page.replace(word, "")
    assert "http" not in page


def plant_orphan(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(id=["nobody", *rows.id[1:]])


def plant_duplicate(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([rows, rows.head(1)])


def plant_excess(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(id=rows.id.iloc[0], code=100 + rows.index % 40).drop_duplicates()


@pytest.mark.parametrize("fault", [plant_orphan, plant_duplicate, plant_excess])
def test_planted_fault_is_detected(shop: Path, tmp_path: Path, fault: Any) -> None:
    file = next((shop / "synthetic/ratings").glob("*.parquet"))
    before = file.read_bytes()
    assert released_links(shop)["ratings"].whole
    fault(pd.read_parquet(file)).to_parquet(file, index=False)
    try:
        assert not released_links(shop)["ratings"].whole
    finally:
        file.write_bytes(before)


def linked_frames(run: Path) -> pd.DataFrame:
    found = {name: frame.compute() for name, frame in dp.Release.open(run).synthetic().items()}
    return found["orders"].merge(found["persons"], left_on="person", right_on="id")


def test_strongest_association_equals_counts_of_linked_rows(shop: Path) -> None:
    """In the data the amount of an order depends on the sex of the person."""
    first = released_links(shop)["orders"].associations[0]
    assert first.names == ("sex", "amount")
    rows = linked_frames(shop)
    above = rows.amount >= 10
    wanted = [[int(((rows.sex == sex) & (above == high)).sum()) for high in (False, True)] for sex in ("F", "M")]
    assert first.counts[:, :2].tolist() == wanted
    assert first.strength > 0.4
    assert "strongest associations across" in (shop / "report.html").read_text()


def test_permuted_links_have_no_strong_association(shop: Path) -> None:
    [file] = (shop / "synthetic/orders").glob("*.parquet")
    before = file.read_bytes()
    rows = pd.read_parquet(file)
    rows.assign(person=rows.person.sample(frac=1, random_state=0).to_numpy()).to_parquet(file, index=False)
    try:
        assert all(one.strength < 0.2 for one in released_links(shop)["orders"].associations)
    finally:
        file.write_bytes(before)


def test_cost_section_lists_components_whose_squares_add(shop: Path) -> None:
    run = linked(shop)
    parts = parts_of_entry(run.run, "privacy")
    squares = [cost.squared_mu for cost, _ in parts.values()]
    page = (shop / "report.html").read_text()
    assert sum(squares) <= cost_of_entry(run.run, "privacy").squared_mu <= sum(squares) * (1 + 1e-6)
    assert all(f"<td>{name}</td>" in page for name in parts)
