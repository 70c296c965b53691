"""Publication of runs over a tree of places: files of every format, all mechanisms, and reasons of omitted sets."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers import publish as publishing, whole_tables
from dpscale.answers.publish import chosen, publish, write_published
from tests.hierarchies.test_publish import list_faults

TREE = pd.DataFrame({
    "country": ["AT", "AT", "AT", "AT", "DE", "DE", "DE", "LU"],
    "region": ["Tirol", "Tirol", "Wien", "Wien", "Bayern", "Bayern", "Berlin", ""],
    "place": ["Innsbruck", "Hall", "Wien", "Mauer", "Passau", "Hof", "Berlin", "Luxemburg"],
})  # fmt: skip
WORKLOAD = [["country", "sex"], ["region", "sex"], ["place"], ["place", "sex"]]


def write_run(folder, workload=None, **sections):
    """Run a job on places, some of them unknown or missing."""
    TREE.to_csv(folder / "places.csv", index=False)
    rng = np.random.default_rng(0)
    place = rng.choice(
        [*TREE.place, "Atlantis", None], 3000, p=[0.3, 0.2, 0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.03, 0.03]
    )
    pd.DataFrame({"place": place, "sex": rng.choice(["f", "m"], 3000)}).to_parquet(folder / "data.parquet")
    (folder / "domain.toml").write_text(
        '[attributes.place]\nkind = "hierarchy"\nfile = "places.csv"\nlevels = ["country", "region"]\n'
        'nulls = "category"\noutside = "category"\n'
        '[attributes.sex]\nkind = "categories"\nvalues = ["f", "m"]\n'
    )
    job = {"data": {"path": str(folder / "data.parquet"), "domain": str(folder / "domain.toml")},
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "ledger": str(folder / "ledger.sqlite"), "dataset": "places"},
           "workload": [{"family": "marginal", "attributes": workload or WORKLOAD}],
           "engine": {"seed": 1}} | sections  # fmt: skip
    return dp.run(job, run_dir=folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("places"))


def test_files_of_all_formats_add_up(run, tmp_path):
    given = ["publish", str(run.path), "--out", str(tmp_path / "out"), "--json", "--set", "country,place"]
    for names in WORKLOAD:
        given += ["--set", ",".join(names)]
    for kind in ("csv", "parquet", "xlsx"):
        given += ["--format", kind]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["left_out"] == 0
    for read, ending in ((pd.read_csv, "csv"), (pd.read_parquet, "parquet")):
        tables = {path.stem[4:]: read(path) for path in (tmp_path / "out" / ending).iterdir()}
        of_country = tables["place-country"] if "place-country" in tables else tables["country-place"]
        place = tables["place"].set_index("place")["count"]
        assert place.sum() == summary["total"] == tables["place-sex"]["count"].sum()
        assert (tables["place-sex"].groupby("place", observed=True)["count"].sum() == place.sort_index()).all()
        country_sex = next(own for name, own in tables.items() if set(name.split("-")) == {"country", "sex"})
        by_country = of_country.groupby("country", observed=True)["count"].sum()
        assert (country_sex.groupby("country", observed=True)["count"].sum() == by_country).all()
        assert by_country["AT"] == place[["Innsbruck", "Hall", "Mauer"]].sum() + place.filter(like="Wien").sum()
    book = pd.read_excel(tmp_path / "out/tables.xlsx", sheet_name=None)
    assert sum("count" in sheet for sheet in book.values()) == 5
    text = (tmp_path / "out/README.txt").read_text()
    assert "Levels of a hierarchy add up too" in text
    assert "not for those under Omitted" in text


@pytest.mark.parametrize("sections", [
    {"mechanism": {"name": "residual-planner"}},
    {"mechanism": {"name": "aim-grem"}},
    {"mechanism": {"name": "residual-planner"}, "reconstruct": {"method": "maxent"}},
])  # fmt: skip
def test_estimates_without_trees_add_up(tmp_path, sections):
    release = write_run(tmp_path, WORKLOAD, **sections)
    published = publish(release.answered, chosen(release.answered, [], None))
    assert published.left_out == {}
    assert len(published.tables) == 4
    assert list_faults(release.domain, published) == []


def test_omitted_sets_have_reasons(run, tmp_path, monkeypatch):
    answered, domain = run.answered, run.domain
    sets = [domain.ordered(names) for names in (["country", "place"], ["place", "sex"], ["country", "sex"])]
    monkeypatch.setattr(whole_tables, "MOST_TREE_CELLS", 25)
    published = publish(answered, sets)
    assert set(published.tables) == set(sets[1:])
    assert published.left_out[sets[0]].endswith("publish place, which determines it")
    monkeypatch.setattr(whole_tables, "MOST_TREE_CELLS", 15)
    published = publish(answered, [sets[1], domain.ordered(("region", "sex")), ("place",)])
    assert published.left_out[sets[1]] == "it has more than 15 cells"
    monkeypatch.setattr(whole_tables, "MOST_TREE_CELLS", 10**6)
    monkeypatch.setattr(whole_tables, "MOST_SIDE", 1)
    published = publish(answered, [sets[1], ("place",)])
    assert set(published.tables) == {("place",)}
    assert "of which it consists" in published.left_out[sets[1]]
    files = write_published(tmp_path / "out", domain, published, "r", 1.0, ("csv",))
    assert "csv/001-place.csv" in files
    assert "of which it consists" in (tmp_path / "out/README.txt").read_text()


def test_sums_of_a_set_that_is_left_out_are_published(run, monkeypatch):
    """Region × sex is the sum of place × sex; if that has no table, it is made by itself."""
    answered, domain = run.answered, run.domain
    sets = [domain.ordered(names) for names in WORKLOAD]
    monkeypatch.setattr(whole_tables, "MOST_TREE_CELLS", 18)
    published = publish(answered, sets)
    assert domain.ordered(("place", "sex")) in published.left_out
    assert list_faults(domain, published) == []
    assert len(published.tables) == 3


def test_set_that_was_not_measured_is_left_out(tmp_path):
    release = write_run(tmp_path, [["country", "sex"], ["region"]])
    sets = [release.domain.ordered(names) for names in (["place"], ["region", "sex"], ["region"])]
    published = publish(release.answered, sets)
    assert published.left_out == dict.fromkeys(sets[:2], whole_tables.UNDETERMINED)
    assert set(published.tables) == {("region",)}


def test_tables_longer_than_a_sheet_are_not_in_the_workbook(run, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "MOST_ROWS", 10)
    published = publish(run.answered, [("country",), ("place",)])
    write_published(tmp_path / "out", run.domain, published, "r", 1.0, ("csv", "xlsx"))
    book = pd.read_excel(tmp_path / "out/tables.xlsx", sheet_name=None, header=None)
    assert set(book) == {"about", "001-country"}
    assert book["about"][0].str.contains("002-place: omitted here").any()
    assert "no sheet has more rows" in (tmp_path / "out/README.txt").read_text()
