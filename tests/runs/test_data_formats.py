"""Jobs over the same records in Parquet, CSV and NDJSON: equal counts, and equal releases under equal keys."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.job.neighbours import neighbour_relation
from dpscale.ledger import Ledger
from dpscale.records import ndjson, table as tables
from dpscale.records.origin import Origin
from dpscale.runs import run, source, table as one_table
from dpscale.runs.links.link_data import read_links
from tests.links.small import make_frames, make_job, write_job as write_link_job
from tests.messages import refused
from tests.runs.small import DOMAIN, table, write_job
from tests.selection import mostly_slow

FORMATS = ("parquet", "csv", "jsonl")
COMPLETE = {
    "attributes": {name: one | {"outside": "drop", "nulls": "drop"} for name, one in DOMAIN["attributes"].items()}
}
SEEDED = {"scheduler": "synchronous", "seed": 3}


def write_rows(path, frame):
    """Write a frame in the format of the path's ending; in NDJSON a null is a missing key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        rows = json.loads(frame.to_json(orient="records", double_precision=15))
        path.write_text("".join(
            json.dumps({name: one for name, one in row.items() if one is not None}) + "\n" for row in rows
        ))  # fmt: skip


def people():
    """Return records with a unit, whose incomes all formats write exactly, in two files."""
    frame = table().round({"income": 3})
    return [frame.iloc[: len(frame) // 3], frame.iloc[len(frame) // 3 :]]


def released(folder):
    return {str(file.relative_to(folder)): file.read_bytes()
            for part in ("measurements", "answers") for file in sorted((folder / part).rglob("*.parquet"))}  # fmt: skip


@pytest.fixture
def equal_keys(monkeypatch):
    """Give releases of one seed the same keys: those of one snapshot and one job."""
    monkeypatch.setattr(source, "joint_digest", lambda *_, **__: "the same snapshot")
    for module in (one_table, run):
        monkeypatch.setattr(module, "job_digest", lambda *_, **__: "the same job")


HOP = {"key": "person", "unit": "home", "where": "area != 'far'"}
UNITS = {
    "rows": {},
    "filter": {"where": "sex = 'F' and code < 2 and income >= 5"},
    "units": {"privacy_unit": "person", "max_rows_per_unit": 2},
    "units of units": {"privacy_unit": "person", "max_rows_per_unit": 2, "unit_nulls": "drop", "unit_through": [HOP]},
}


@pytest.mark.usefixtures("equal_keys")
@pytest.mark.parametrize("unit", mostly_slow(UNITS, {"units of units"}))
def test_releases_of_equal_keys_are_equal(tmp_path, monkeypatch, unit):
    """Also from parts of split files and small blocks, read by threads."""
    homes = pd.DataFrame({"person": np.arange(1500), "home": [f"h{n % 500}" for n in range(1500)],
                          "area": ["near", "far", "Österå"] * 500})  # fmt: skip
    found = []
    for ending in (*FORMATS, "jsonl"):
        place = tmp_path / f"{ending}{len(found)}"
        for number, part in enumerate(people()):
            write_rows(place / f"data/{number}.{ending}", part)
        write_rows(place / f"homes.{ending}", homes)
        data = {"path": "data", "domain": "domain.toml", **UNITS[unit]}
        if "unit_through" in data:
            data["unit_through"] = [HOP | {"path": f"homes.{ending}"}]
        path = write_job(place, engine=SEEDED, data=data)
        if len(found) == 3:
            monkeypatch.setattr(tables, "SPLIT_BYTES", 1)
            monkeypatch.setattr(tables, "SPLIT_ROWS", 300)
            monkeypatch.setattr(ndjson, "RANGE_BYTES", 10_000)
            monkeypatch.setattr(ndjson, "BLOCK_BYTES", 3000)
        scheduler = "threads" if len(found) == 3 else "synchronous"
        found.append(released(dp.run(path, place / "run", scheduler=scheduler).path))
    assert all(one == found[0] for one in found)
    assert len(found[0]) > 2


@pytest.mark.usefixtures("equal_keys")
def test_other_records_give_another_release(tmp_path, monkeypatch):
    """The comparison above fails if a reader trims nothing but reads one row less."""
    for number, part in enumerate(people()):
        write_rows(tmp_path / f"data/{number}.jsonl", part)
    path = write_job(tmp_path, engine=SEEDED)
    first = released(dp.run(path, tmp_path / "run").path)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "ledger.sqlite").unlink()
    whole = ndjson.OpenNdjson._lines
    monkeypatch.setattr(ndjson.OpenNdjson, "_lines", lambda self, start, end: (
        text.partition(b"\n")[2] for text in whole(self, start, end)))  # fmt: skip
    assert released(dp.run(path, tmp_path / "run").path) != first


def link_sums(path):
    """Return the exact links of a job: their number, and the degrees of both sides."""
    job, engine, found = Job.read(path), resolve(scheduler="synchronous"), []
    for link in job.link:
        exact = read_links(engine, job, link, neighbour_relation(job))
        codes = sorted(exact.by_degree(side, np.arange(6)).tolist() for side in (0, 1))
        found.append((link.called, len(exact.rows), codes))
    engine.close()
    return found


def write_shop(folder, ending):
    """Write the linked job with its private tables and the pairs in one format."""
    write_link_job(folder)
    frames, job = make_frames(), make_job()
    for name in ("persons", "orders", "ratings"):
        rows = frames[name].round({"amount": 6})
        for number in (0, 1):
            write_rows(folder / f"own/{name}/{number}.{ending}", rows.iloc[number::2])
    for name in ("persons", "orders"):
        job["tables"][name]["path"] = f"own/{name}"
    job["link"][1]["via"] = f"own/ratings/*.{ending}"
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


def test_links_are_those_of_the_same_tables_in_parquet(tmp_path):
    found = [link_sums(write_shop(tmp_path / ending, ending)) for ending in FORMATS]
    assert found[0] == found[1] == found[2]
    assert all(number > 100 for _, number, _ in found[0])


def test_linked_tables_are_released(tmp_path):
    """Keys of a numeric column are found although Parquet stores them as integers."""
    release = dp.run(write_shop(tmp_path, "jsonl"), tmp_path / "run")
    frames = make_frames()
    for name in ("persons", "orders"):
        assert release.tables[name].total().estimate == pytest.approx(len(frames[name]), rel=0.25)
    pairs = release.links["ratings"].synthetic().compute()
    assert len(pairs) > 200


def test_domain_commands_read_the_format(tmp_path):
    for ending in FORMATS:
        for number, part in enumerate(people()):
            write_rows(tmp_path / f"{ending}/{number}.{ending}", part)
    invoke = CliRunner().invoke
    drafts = {ending: invoke(main, ["domain", "sketch", str(tmp_path / ending)]).stdout for ending in FORMATS}
    assert drafts["jsonl"] == drafts["csv"]
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(COMPLETE))
    checks = [invoke(main, ["check", "domain", str(tmp_path / "domain.toml"), str(tmp_path / ending), "--json"])
              for ending in FORMATS]  # fmt: skip
    assert [one.exit_code for one in checks] == [0, 0, 0]
    assert json.loads(checks[2].stdout) == json.loads(checks[0].stdout)


def test_plan_reads_no_record(tmp_path, monkeypatch):
    """A plan does not open the files; a file without a header is not opened for its columns either."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.jsonl").write_text("[no object]\n")
    path = write_job(tmp_path)
    assert CliRunner().invoke(main, ["plan", str(path)]).exit_code == 0
    found = Origin().table(str(tmp_path / "data"), dp.Domain.from_dict(DOMAIN))
    monkeypatch.setattr(ndjson.OpenNdjson, "_lines", None)
    found.require(["age", "sex"])
    assert found.partitions[0].has("anything")
    assert found.types() == dict.fromkeys(DOMAIN["attributes"], "")


@pytest.mark.usefixtures("equal_keys")
def test_number_of_readings_does_not_depend_on_values(tmp_path, monkeypatch):
    """Records with nulls, foreign texts, floats or nested values are read as often as others."""
    calls, whole = [], ndjson.OpenNdjson._lines

    def lines(self, start, end):
        calls.append((start, end))
        return whole(self, start, end)

    monkeypatch.setattr(ndjson.OpenNdjson, "_lines", lines)
    domain = {"attributes": {"age": {"kind": "integer", "low": 0, "high": 7, "outside": "category", "nulls": "category",
                                     "unparsable": "category"},
                             "sex": {"kind": "categories", "values": ["F", "M"], "outside": "category",
                                     "nulls": "category"}}}  # fmt: skip
    found = []
    for number, odd in enumerate(['{"age":1,"sex":"F"}', '{"age":"x","sex":[1]}', '{"age":1e400,"sex":true}', "{}"]):
        place = tmp_path / str(number)
        (place / "data").mkdir(parents=True)
        (place / "data/x.jsonl").write_text('{"age":1,"sex":"F"}\n' * 50 + odd)
        path = write_job(place, engine=SEEDED, workload=[{"family": "marginal", "degree": 1}])
        (place / "domain.toml").write_text(tomli_w.dumps(domain))
        dp.run(path, place / "run")
        found.append(calls.copy())
        calls.clear()
    assert all(one == found[0] for one in found)
    assert found[0]


def releases(place):
    """Return the releases that the ledger charges."""
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return [one for own in ledger.summary()["datasets"].values() for one in own["releases"]]


def test_refused_value_is_the_same_in_all_formats(tmp_path):
    found = []
    for ending in ("csv", "jsonl"):
        for number, part in enumerate(people()):
            write_rows(tmp_path / f"{ending}/data/{number}.{ending}", part.assign(sex="SECRET"))
        path = write_job(tmp_path / ending)
        with pytest.raises(dp.DataError) as caught:
            dp.run(path, tmp_path / ending / "run")
        found.append(str(caught.value))
        assert releases(tmp_path / ending) == []
    assert found[0] == found[1]
    assert "SECRET" not in found[0]


def test_invalid_line_costs_nothing(tmp_path):
    write_rows(tmp_path / "data/0.jsonl", people()[0])
    with (tmp_path / "data/0.jsonl").open("a") as file:
        file.write('{"age": 1, "sex": "SECRET"\n')
    with refused(dp.DataError) as caught:
        dp.run(write_job(tmp_path), tmp_path / "run")
    assert "SECRET" not in str(caught.value)
    assert releases(tmp_path) == []
