"""Synthetic rows of whole runs: equal bytes on every scheduler, the columns of the input, and any number of rows."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import sections as dp_sections
from dpscale.runs.opening import open_part
from tests.messages import refused
from tests.running import run_stages

DOMAIN = {
    "attributes": {
        "age": {"kind": "integer", "low": 0, "high": 40, "outside": "clip"},
        "sex": {"kind": "categories", "values": ["F", "M"], "nulls": "category"},
        "città": {"kind": "categories", "values": ["Forlì", "東京", "Ærø"]},
        "income": {"kind": "bins", "edges": [0, 100, 1000, 5000], "outside": "clip"},
    }
}
ONE_QUERY = [{"family": "predicates", "attributes": [["age", "sex"]], "file": "query.npy"}]
MARGINALS = [{"family": "marginal", "degree": 2}]


def frame(rows: int = 1500) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(0, 41, rows)
    sex = np.where(rng.random(rows) < 0.2, None, np.where(rng.random(rows) < age / 40, "F", "M"))
    return pd.DataFrame({
        "income": np.round(age * 100 + rng.random(rows) * 300, 2),
        "città": rng.choice(["Forlì", "東京", "Ærø"], rows, p=[0.6, 0.3, 0.1]),
        "age": age.astype("int16"),
        "id": np.arange(rows),
        "sex": sex,
    })  # fmt: skip


def write_job(folder: Path, name: str = "job.toml", data: pd.DataFrame | None = None, **changes: Any) -> Path:
    if not (folder / "data.parquet").exists():
        (frame() if data is None else data).to_parquet(folder / "data.parquet", index=False)
    (folder / "domain.toml").write_text(tomli_w.dumps(changes.pop("domain", DOMAIN)))
    job = {
        "data": {"path": "data.parquet", "domain": "domain.toml"},
        "privacy": {"privacy_cost": 4.0, "dataset": "rows"},
        "workload": MARGINALS,
        "mechanism": {"name": "aim-grem"},
        "engine": {"scheduler": "synchronous", "seed": 7},
        "synthesize": {"rows": 900, "parts": 3, "types": "input"},
    }
    path = folder / name
    path.write_text(tomli_w.dumps({key: value for key, value in (job | changes).items() if value is not None}))
    return path


def row_digests(run: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((run / "synthetic").iterdir())}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows")
    dp.run(write_job(place), place / "run")
    return place


def test_number_of_files_does_not_change_rows(reference: Path, tmp_path: Path) -> None:
    one = dp.run(write_job(reference, "one.toml", synthesize={"rows": 900, "types": "input"}), tmp_path / "run")
    rows, others = (run.synthetic().compute() for run in (one, dp.Release.open(reference / "run")))
    assert (rows[["age", "sex"]].fillna("").values == others[["age", "sex"]].fillna("").values).all()


@pytest.mark.parametrize("method", ["auto", "ancestral", "sampler"])
def test_auto_method_selects_smaller_error(tmp_path: Path, method: str) -> None:
    """Automatic selection between ancestral and polished rows of a graphical model takes the smaller distance to the
    estimates.
    """
    job = write_job(tmp_path, mechanism={"name": "mst"}, reconstruct={"method": "graphical"},
                synthesize={"rows": 900, "method": method})  # fmt: skip
    release = dp.run(job, tmp_path / "run")
    record = json.loads((release.path / "synthetic/_rows.json").read_text())
    assert len(release.synthetic()) == 900
    assert record["distances"]["2"] < 0.05
    if method == "auto":
        off = {name: sum(distances.values()) for name, distances in record["tried"].items()}
        assert record["method"] == min(off, key=off.__getitem__)
        assert set(off) == {"ancestral", "polished"}
    else:
        assert (record["method"], record["tried"]) == ("polished" if method == "sampler" else method, {})


@pytest.mark.parametrize(
    ("row_request", "way"),
    [({}, "polished"), ({"polish": False}, "sampler"), ({"weights": True}, "sampler"), ({"rows": 9000}, "sampler"),
     ({"rows": 9000, "polish": True}, "polished")],
)  # fmt: skip
def test_polishing_depends_on_row_count_and_option(
    reference: Path, tmp_path: Path, row_request: dict[str, Any], way: str
) -> None:
    shutil.copytree(reference / "run", tmp_path / "run")
    run = open_part(tmp_path / "run")
    run.request_rows(dp_sections.SynthesizeTable(**({"rows": 900} | row_request)))
    run_stages(run, only="synthesize")
    record = json.loads((run.path / "synthetic/_rows.json").read_text())
    assert record["method"] == way
    assert record["distances"]["2"] < 0.05


def test_rows_have_names_types_and_order_of_input(reference: Path) -> None:
    release = dp.Release.open(reference / "run")
    rows = release.synthetic().compute()
    assert list(rows.columns) == ["income", "città", "age", "sex"]
    schemas = [pq.read_schema(reference / "run/synthetic" / f"part-{n:05d}.parquet") for n in range(3)]
    assert {str(schema) for schema in schemas} == {str(schemas[0])}
    assert [str(field.type) for field in schemas[0]] == ["double", "string", "int16", "string"]
    assert schemas[0].metadata is None
    assert len(rows) == 900
    assert rows["sex"].isna().mean() == pytest.approx(0.2, abs=0.05)
    assert set(rows["città"]) == {"Forlì", "東京", "Ærø"}
    assert rows[rows.sex == "F"].age.mean() > rows[rows.sex == "M"].age.mean() + 5
    assert "rows" not in json.dumps(release.manifest["columns"])


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_scheduler_does_not_change_rows(reference: Path, tmp_path: Path, scheduler: str) -> None:
    job = write_job(reference, f"{scheduler}.toml", engine={"scheduler": scheduler, "seed": 7})
    assert row_digests(dp.run(job, tmp_path / "run").path) == row_digests(reference / "run")


def test_redrawn_part_has_same_bytes(reference: Path) -> None:
    from dpscale.runs.estimates import model_folder
    from dpscale.runs.stages.synthesize import write_part
    from dpscale.synthesis.draw import split_rows

    run, before = open_part(reference / "run"), row_digests(reference / "run")
    [part] = split_rows(900, 3)
    write_part(str(run.path), str(model_folder(run)), "polished", run.synthesis, part)
    assert row_digests(reference / "run") == before


def test_report_shows_distance_of_rows_to_estimates(reference: Path) -> None:
    record = json.loads((reference / "run/synthetic/_rows.json").read_text())["distances"]
    assert list(record) == ["1", "2"]
    assert record["1"] < record["2"] < 0.05
    page = (reference / "run/report.html").read_text()
    assert "Synthetic rows" in page
    assert f"{100 * record['2']:.2f} %" in page


def test_rows_can_be_requested_again_without_charge(reference: Path, tmp_path: Path) -> None:
    job = write_job(tmp_path, synthesize=None)
    run = dp.run(job, tmp_path / "run")
    assert "synthesize" not in run.manifest["stages"]
    with refused(dp.JobError):
        run.synthetic()
    measured = run.manifest["stages"]["measure"]
    for rows in (50, 20, 20):
        done = CliRunner().invoke(main, ["rows", str(tmp_path / "run"), "--rows", str(rows), "--quiet"])
        assert done.exit_code == 0, done.output
        assert len(dp.Release.open(tmp_path / "run").synthetic()) == rows
    again = dp.run(write_job(tmp_path, "again.toml", synthesize={"rows": 30, "format": "csv"}), tmp_path / "run")
    assert len(again.synthetic()) == 30
    assert again.manifest["stages"]["measure"] == measured
    assert [path.name for path in sorted((tmp_path / "run/synthetic").glob("part*"))] == ["part-00000.csv"]


@pytest.mark.parametrize("rows", [2 * 10**12, 10**12, 10**400])
def test_too_many_rows_are_refused_without_change(reference: Path, tmp_path: Path, rows: int) -> None:
    shutil.copytree(reference / "run", tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    result = CliRunner().invoke(main, ["rows", str(tmp_path / "run"), "--rows", str(rows)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.exception
    assert result.stderr.startswith("dpscale: synthesize.rows: ")
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before
    assert len(dp.Release.open(tmp_path / "run").synthetic()) == 900


@pytest.mark.parametrize("row_request", [{"rows": 2 * 10**12}, 5, {"row": 1}])
def test_damaged_row_request_is_refused(reference: Path, tmp_path: Path, row_request: Any) -> None:
    run = shutil.copytree(reference / "run", tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["stages"].pop("synthesize")
    (run / "manifest.json").write_text(json.dumps(manifest | {"synthesize": row_request}))
    result = CliRunner().invoke(main, ["rows", str(run)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.exception
    assert "is damaged" in result.stderr


def test_number_of_files_is_bounded() -> None:
    for rows, columns, parts in ((1, 9, 1), (100_001, 9, 2), (10**7, 9, 100), (10**8, 9, 100), (10**9, 9, 1000),
                                 (10**9, 100, 2981), (10**9, 1000, 10_000), (10**12, 9, 10_000)):  # fmt: skip
        assert dp_sections.SynthesizeTable().parts_of(rows, columns) == parts
    assert dp_sections.SynthesizeTable(parts=7).parts_of(10**12, 9) == 7


def test_rows_beyond_memory_are_refused_without_charge(tmp_path: Path) -> None:
    job = write_job(tmp_path, synthesize={"rows": 10**9, "parts": 1})
    with refused(dp.JobError):
        dp.run(job, tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()


def test_recreated_directory_uses_new_request(tmp_path: Path) -> None:
    """The seed gives the same release in the same directory, with another format of rows."""
    dp.run(write_job(tmp_path, synthesize={"rows": 40}), tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    again = dp.run(write_job(tmp_path, synthesize={"rows": 40, "format": "csv"}), tmp_path / "run")
    assert [path.name for path in sorted((again.path / "synthetic").glob("part*"))] == ["part-00000.csv"]


def test_report_counts_pairs_beyond_memory(tmp_path: Path) -> None:
    job = write_job(tmp_path, engine={"scheduler": "synchronous", "seed": 7, "memory": "150kB"},
                    synthesize={"rows": 40}, reconstruct={"method": "maxent", "implied": "chains"})  # fmt: skip
    run = dp.run(job, tmp_path / "run")
    record = json.loads((run.path / "synthetic/_rows.json").read_text())["pairs"]
    assert 0 < record["held"] < record["of"] == 6
    assert f"Only {record['held']} of 6 pairs" in (run.path / "report.html").read_text()


def test_default_row_count_is_estimated_total(tmp_path: Path) -> None:
    release = dp.run(write_job(tmp_path, synthesize={}), tmp_path / "run")
    assert len(release.synthetic()) == pytest.approx(1500, abs=30)


def test_weighted_rows_sum_to_total(tmp_path: Path) -> None:
    release = dp.run(write_job(tmp_path, synthesize={"rows": 200, "weights": True}), tmp_path / "run")
    rows = release.synthetic().compute()
    assert rows["weight"].sum() == pytest.approx(1500, abs=40)
    assert rows["weight"].min() > 0


@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals", "residual-planner"])
def test_rows_of_fixed_plan_mechanisms(tmp_path: Path, mechanism: str) -> None:
    release = dp.run(write_job(tmp_path, mechanism={"name": mechanism}), tmp_path / "run")
    assert len(release.synthetic()) == 900


def test_rows_satisfy_domain_rules(tmp_path: Path) -> None:
    domain = DOMAIN | {
        "rule": [{"rule": "not (age <= 10 and sex = 'F')"}, {"rule": "if città = '東京' then income < 1000"}]
    }
    rows = dp.run(write_job(tmp_path, domain=domain), tmp_path / "run").synthetic().compute()
    assert not ((rows.age <= 10) & (rows.sex == "F")).any()
    assert not ((rows["città"] == "東京") & (rows.income >= 1000)).any()


def test_rows_of_tiny_constant_table(tmp_path: Path) -> None:
    data = pd.DataFrame({"income": [5.0] * 3, "città": ["東京"] * 3, "age": [7] * 3, "sex": ["F"] * 3})
    release = dp.run(write_job(tmp_path, data=data, synthesize={"rows": 3}), tmp_path / "run")
    assert len(release.synthetic().compute()) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"synthesize": {"rows": 0}}, "synthesize.rows"),
        ({"synthesize": {"format": "xlsx"}}, "synthesize.format"),
        ({"synthesize": {"method": "ancestral"}}, 'set reconstruct.method = "graphical"'),
        ({"synthesize": {"method": "ancestral", "weights": True}, "reconstruct": {"method": "graphical"},
          "mechanism": {"name": "mst"}}, "'ancestral' with weights"),
        ({"synthesize": {"polish": "often"}}, "synthesize.polish"),
        ({"synthesize": {"method": "ancestral", "polish": True}, "reconstruct": {"method": "graphical"},
          "mechanism": {"name": "mst"}}, "'ancestral' with polish"),
        ({"synthesize": {"row": 5}}, "did you mean 'rows'"),
        ({"mechanism": {"name": "query-smasher"}, "workload": ONE_QUERY}, "maxent for a plan"),
    ],
)  # fmt: skip
def test_invalid_synthesis_is_refused_without_charge(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    np.save(tmp_path / "query.npy", np.eye(41, 3)[None])
    with pytest.raises(dp.DpscaleError) as refused:
        dp.run(write_job(tmp_path, **changes), tmp_path / "run")
    assert message in str(refused.value)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_data_dependent_types_are_not_released(tmp_path: Path) -> None:
    """One table has an extra row with a null, which is dropped: pandas then stores the integers as floats."""
    more = pd.concat(
        [frame(), pd.DataFrame({"income": [5.0], "città": ["Ærø"], "age": [None], "id": [1], "sex": ["F"]})]
    )
    domain = {"attributes": DOMAIN["attributes"] | {"age": DOMAIN["attributes"]["age"] | {"nulls": "drop"}}}
    schemas = {}
    for name, data in (("one", frame()), ("other", more)):
        (tmp_path / name).mkdir()
        job_path = write_job(tmp_path / name, data=data, domain=domain, synthesize={"rows": 50})
        run = dp.run(job_path, tmp_path / name / "run")
        schemas[name] = pq.read_schema(run.path / "synthetic/part-00000.parquet")
        assert set(run.manifest["columns"].values()) == {""}
    assert schemas["one"] == schemas["other"]
    types = {name: str(pq.read_schema(tmp_path / name / "data.parquet").field("age").type) for name in schemas}
    assert types["one"] != types["other"]  # the trap is there


def test_dates_have_the_resolution_of_their_column(tmp_path: Path) -> None:
    """Compared columns are midnight; others have a time of day, in the same bytes when rows are drawn again."""
    begin = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(2000) * 3000, "s"))
    data = pd.DataFrame({
        "begin": begin, "end": begin + pd.Timedelta(days=3), "seen": begin, "away": begin.dt.tz_localize("UTC"),
        "text": begin.dt.strftime("%d.%m.%Y"), "part": begin.dt.strftime("%Y-%m"),
    })  # fmt: skip
    month = {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-04", "outside": "clip"}
    domain = {"attributes": {name: month for name in data} | {
        "away": month | {"zone": "Asia/Tokyo"}, "text": month | {"format": "%d.%m.%Y"},
        "part": month | {"format": "%Y-%m"}}}  # fmt: skip
    for form in ("parquet", "csv"):
        place = tmp_path / form
        place.mkdir()
        job = write_job(place, data=data, domain=domain, rule=[{"rule": "begin <= end"}],
                        synthesize={"rows": 600, "parts": 2, "types": "input", "format": form})  # fmt: skip
        run = dp.run(job, place / "run")
        before = row_digests(run.path)
        rows = run.synthetic().compute()
        midnight = {name: (rows[name].dt.normalize() == rows[name]).mean() for name in ("begin", "end", "seen", "away")}
        assert midnight["begin"] == midnight["end"] == 1
        assert midnight["seen"] < 0.01
        assert midnight["away"] < 0.01
        assert (rows.begin <= rows.end).all()
        assert str(rows.away.dt.tz) == "UTC"
        assert rows.away.dt.tz_convert("Asia/Tokyo").dt.month.between(1, 4).all()
        assert rows.text.str.fullmatch(r"\d\d\.0[1-4]\.2024").all()
        assert rows.part.str.fullmatch(r"2024-0[1-4]").all()
        part = open_part(run.path)
        for count in (500, 600):
            part.request_rows(dp_sections.SynthesizeTable(rows=count, parts=2, types="input", format=form))
            run_stages(part, only="synthesize")
            assert (row_digests(run.path) == before) == (count == 600)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_stated_dates_of_csv_are_texts_in_their_format(tmp_path: Path, form: str) -> None:
    """Files without types have dates in the format of the domain if the job asks for the types of the input."""
    day = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(2000) % 90, "D"))
    data = pd.DataFrame({"text": day.dt.strftime("%d.%m.%Y"), "plain": day.dt.strftime("%Y-%m-%d")})
    data.to_csv(tmp_path / "data.csv", index=False)
    month = {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-04", "outside": "clip"}
    domain = {"attributes": {"text": month | {"format": "%d.%m.%Y"}, "plain": month}}
    for types in ("input", "own"):
        rows = {"rows": 300, "types": types, "format": form}
        job = write_job(tmp_path, f"{types}.toml", data, domain=domain, synthesize=rows,
                        privacy={"privacy_cost": 4.0, "dataset": types})  # fmt: skip
        job.write_text(job.read_text().replace("data.parquet", "data.csv"))
        rows = dp.run(job, tmp_path / types).synthetic().compute()
        assert rows.text.astype(str).str.fullmatch(r"\d\d\.0[1-4]\.2024").all() == (types == "input")
        assert pd.to_datetime(rows.plain).dt.month.between(1, 4).all()
