"""The claim of docs/privacy.md names every folder that a reader gets, and the neighbours of public totals."""

import re
from pathlib import Path

import dpscale as dp
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.runs.opening import open_run
from tests.audit.test_bundle import PASSED
from tests.discovery import tables as searched
from tests.links.small import write_job

PAGE = Path(__file__).parents[2] / "docs/privacy.md"


def claim() -> str:
    return PAGE.read_text().split("**The claim.**")[1].split("## Trust")[0]


def listed() -> set[str]:
    return set(re.findall(r"`([a-z]+)/`", claim()))


def folders(run: Path) -> set[str]:
    """Return the names of the folders of a run, and of its tables and joins, with files in them."""
    roots = [run, *(run / "tables").glob("*"), *(run / "joins").glob("*")]
    return {one.name for root in roots for one in root.iterdir() if one.is_dir() and any(one.rglob("*.*"))}


def test_claim_names_every_folder_of_a_database(tmp_path):
    workload = [{"family": "marginal", "attributes": [["persons.sex", "orders.month"]]}]
    path = write_job(tmp_path, {"budget": {"method": "planned"}, "workload": workload})
    release = dp.run(path, tmp_path / "run")
    write_bundle(open_run(release.path), PASSED)
    found = folders(release.path)
    assert {"allocation", "domains", "joins", "links", "tables", "evidence", "synthetic"} <= found
    assert found <= listed()
    assert not found <= listed() - {"allocation"}  # planted: a folder that the page leaves out


def test_claim_names_folders_of_searches_and_units(tmp_path):
    release = dp.run(searched.write_tables(tmp_path), tmp_path / "run")
    found = folders(release.path)
    assert "domain" in found
    assert found <= listed()


def test_claim_names_folders_of_periods_and_refinements():
    assert {"periods", "earlier", "published", "units"} <= listed()


def test_claim_states_the_neighbours_of_public_totals():
    assert 'origin = "same records"' in claim()
    assert "twice the ε" in claim()
