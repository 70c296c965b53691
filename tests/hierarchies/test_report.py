"""Report section and expected errors of a hierarchy: released numbers, a limited table, escaped labels, and a map."""

import html
import json
import re

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers.report import results
from dpscale.answers.report.results import ReportNode, answered_levels
from dpscale.base.display import rounded

PLACES, DISTRICTS, ROWS = 120, 12, 6000
TAGGED, FORMULA = "<b>P0</b>", "$x_1$"
ROW = re.compile(r"<b>(.*?)</b><span>(.*?)</span>")
WORKLOAD = [["country"], ["district"], ["place"], ["country", "sex"]]


def write_places(folder):
    """Write the tree with coordinates, records and the domain."""
    place = np.arange(PLACES)
    names = [TAGGED, *(f"P{i}" for i in place[1:])]
    number = place % DISTRICTS
    frame = {"country": np.where(number % 3, FORMULA, "C0"), "district": [f"D{i}" for i in number], "place": names,
             "lat": 40 + number + place / 1000, "lon": 5.0 + place / 100}  # fmt: skip
    pd.DataFrame(frame).to_parquet(folder / "places.parquet")
    rng = np.random.default_rng(0)
    weights = 1 / (1 + place)
    chosen = rng.choice(PLACES, ROWS, p=weights / weights.sum())
    records = {"place": np.array(names, object)[chosen], "sex": rng.choice(["f", "m"], ROWS)}
    pd.DataFrame(records).to_parquet(folder / "people.parquet")
    tree = {"kind": "hierarchy", "file": "places.parquet", "levels": ["country", "district"]}
    attributes = {"place": tree | {"coordinates": ["lat", "lon"]}, "sex": {"kind": "categories", "values": ["f", "m"]}}
    (folder / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))


def job_of(folder, name, workload=WORKLOAD, **changes):
    return {"data": {"path": str(folder / "people.parquet"), "domain": str(folder / "domain.toml")},
            "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": name, "ledger": str(folder / "ledger.sqlite")},
            "workload": [{"family": "marginal", "attributes": workload}],
            "engine": {"scheduler": "synchronous"}, **changes}  # fmt: skip


def run_job(folder, name, workload=WORKLOAD, **changes):
    return dp.run(job_of(folder, name, workload, **changes), folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("places")
    write_places(place)
    return place


@pytest.fixture(scope="module")
def release(folder, plots_of_module):
    return run_job(folder, "run")


def section_of(release):
    page = (release.path / "report.html").read_text()
    start = page.index('<h2 id="hierarchies">')
    return page[start : page.index("<h2", start + 4)]


def test_rows_are_released_estimates(release):
    width, expected = 1.959964, set()
    for level in ("country", "district", "place"):
        table = release.table([level])
        pairs = zip(table[level].astype(str), table["estimate"], table["std_error"], strict=True)
        expected |= {
            (label, f"{rounded(value, error, 0)} ± {rounded(width * error, error, 0)}") for label, value, error in pairs
        }
    rows = [(html.unescape(label), text) for label, text in ROW.findall(section_of(release))]
    assert set(rows) == expected
    assert len(rows) == len(expected) == PLACES + DISTRICTS + 2


def test_errors_by_level_are_those_of_the_answers(release):
    section = section_of(release)
    for level, nodes, tables in (("country", 2, 2), ("district", DISTRICTS, 1), ("place", PLACES, 1)):
        cells = re.search(rf"<tr><td>{level}</td>(.*?)</tr>", section)[1]
        found = re.findall(r'<td class="n">(.*?)</td>', cells)
        errors = [release.table(names)["std_error"] for names in WORKLOAD if names[0] == level]
        rms = float(np.sqrt((pd.concat(errors) ** 2).mean()))
        mean = float(release.table([level])["estimate"].mean())
        assert found[:2] == [str(nodes), str(tables)]
        assert float(found[2]) == pytest.approx(rms, rel=1e-3)
        assert float(found[3].replace(",", "")) == pytest.approx(mean, rel=1e-3)


def test_plan_command_states_the_errors_of_the_answers(folder, release):
    (folder / "job.toml").write_text(tomli_w.dumps(job_of(folder, "run")))
    text, found = (CliRunner().invoke(main, ["plan", str(folder / "job.toml"), "--quiet", *more]).stdout
                   for more in ([], ["--json"]))  # fmt: skip
    rows = json.loads(found)["levels"]
    assert [(row["level"], row["nodes"], row["sets"]) for row in rows] == [
        ("country", 2, 2), ("district", DISTRICTS, 1), ("place", PLACES, 1)]  # fmt: skip
    for row in rows:
        errors = [release.table(names)["std_error"] for names in WORKLOAD if names[0] == row["level"]]
        assert row["error"] == pytest.approx(float(np.sqrt((pd.concat(errors) ** 2).mean())))
        assert re.search(rf"{row['error']:.4g}  place: {row['level']} +{row['nodes']} nodes", text)


def test_labels_are_escaped(release):
    section = section_of(release)
    assert TAGGED not in section
    assert html.escape(TAGGED) in section
    assert "<svg" in section  # a label that looks like a formula is drawn as it is
    assert FORMULA in section.partition("<svg")[2]


def count_rows(nodes):
    return sum(1 + count_rows(node.below) for node in nodes if node.label)


def test_table_is_limited_and_states_the_rest(release, monkeypatch):
    monkeypatch.setattr(results, "MOST_NODES", 20)
    monkeypatch.setattr(results, "MOST_CHILDREN", 4)
    answered = release.answered
    (found,) = results.hierarchy_results(answered, [{"attributes": ["place"], "queries": 1, "rms_error": None}])
    assert found["shown"] == count_rows(found["nodes"]) <= 20 < found["total"]
    first = found["nodes"][0]
    assert first.estimate == release.table(["country"])["estimate"].max()
    assert [node.estimate for node in first.below] == sorted((node.estimate for node in first.below), reverse=True)
    assert (len(first.below), first.hidden) == (4, 4)
    assert first.rest + sum(node.estimate for node in first.below) == pytest.approx(first.estimate)


def test_nodes_below_noise_stay_closed(release):
    levels = answered_levels(release.answered, release.domain.hierarchies[0])
    nodes, _ = results._open_nodes(levels)
    every = list(nodes)
    for node in every:
        every.extend(node.below)
        assert not node.below or node.estimate > node.half
    assert any(isinstance(node, ReportNode) and not node.below for node in every)


def test_model_estimates_have_no_intervals(folder):
    release = run_job(folder, "model", reconstruct={"method": "maxent"})
    section = section_of(release)
    assert len(ROW.findall(section)) == PLACES + DISTRICTS + 2
    assert "±" not in section
    assert "without standard errors" in section


def test_without_a_level_in_the_workload_there_is_no_section(folder):
    release = run_job(folder, "other", [["sex"]])
    assert 'id="hierarchies"' not in (release.path / "report.html").read_text()


def test_coordinates_are_means_of_leaves(release):
    own, tree = release.domain.hierarchies[0], release.domain["place"].level.tree
    found = results._mean_coordinates(tree.coordinates, own, "district")
    labels = list(release.domain["district"].labels)
    for number in range(DISTRICTS):
        leaves = np.arange(number, PLACES, DISTRICTS)
        expected = [np.mean(40 + number + leaves / 1000), np.mean(5 + leaves / 100)]
        assert found[:, labels.index(f"D{number}")] == pytest.approx(expected)
