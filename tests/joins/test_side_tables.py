"""Attributes of side tables in joins and links are public by the statement of the job, or refused."""

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import bundle
from dpscale.base.errors import JobError
from dpscale.job import Job
from dpscale.runs.opening import open_part, open_run
from tests.audit.test_bundle import PASSED
from tests.messages import refused

DOMAINS = {
    "pats": {"sex": {"kind": "coded", "size": 2}},
    "docs": {"field": {"kind": "coded", "size": 3}, "senior": {"kind": "coded", "size": 2}},
    "visits": {"month": {"kind": "coded", "size": 4}},
}
LINKS = [{"kind": "one-to-many", "name": "visits_of", "parent": "pats", "child": "visits", "child_key": "pat",
          "max_degree": 3}]  # fmt: skip
DOCTORS = {"kind": "one-to-many", "name": "treated", "parent": "docs", "child": "visits", "child_key": "doc"}
SENTENCE = "declares docs.field, docs.senior public"


def write(folder, public, links=(DOCTORS,), workload=True, where="docs"):
    rng = np.random.default_rng(0)
    frames = {
        "pats": pd.DataFrame({"pat": range(60), "sex": rng.integers(0, 2, 60)}),
        "docs": pd.DataFrame({"doc": range(6), "field": rng.integers(0, 3, 6), "senior": rng.integers(0, 2, 6)}),
        "visits": pd.DataFrame({"pat": rng.integers(0, 60, 120), "doc": rng.integers(0, 6, 120),
                                "month": rng.integers(0, 4, 120)}),
    }  # fmt: skip
    tables = {}
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": DOMAINS[name]}))
        tables[name] = {"path": f"{name}.parquet", "domain": f"{name}.toml"}
    tables["pats"]["key"], tables["docs"]["key"] = "pat", "doc"
    if public is not None:
        tables[where]["public_attributes"] = public
    job = {"tables": tables, "link": [*LINKS, *links], "engine": {"scheduler": "synchronous"},
           "privacy": {"epsilon": 10.0, "delta": 1e-6, "dataset": "clinic", "unit": "pats"},
           "budget": {"method": "equal"}}  # fmt: skip
    if workload:
        job["workload"] = [{"family": "marginal", "attributes": [["pats.sex", "docs.field"]], "name": "seen",
                            "through": ["visits_of", "treated"]}]  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


@pytest.mark.parametrize("public", [None, [], ["field"], ["senior"]])
def test_attributes_that_are_not_public_are_refused(tmp_path, public):
    """The planted violation: one doctor's attribute changes as many rows of the join as the doctor has visits."""
    with refused(JobError) as caught:
        dp.run(write(tmp_path, public), tmp_path / "run")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize(("public", "where"), [
    (["month"], "visits"),
    (["fields"], "docs"),
])  # fmt: skip
def test_wrong_statements_are_refused(tmp_path, public, where):
    with refused(JobError):
        dp.run(write(tmp_path, public, where=where, links=(), workload=False) if where == "docs" else write(
            tmp_path, public, where=where), tmp_path / "run")  # fmt: skip


def test_side_table_without_a_link_needs_no_statement(tmp_path):
    assert Job.read(write(tmp_path, None, links=(), workload=False)).dataset == "clinic"


def test_statement_is_in_plan_reports_and_evidence(tmp_path):
    path = write(tmp_path, ["field", "senior"])
    plan = CliRunner().invoke(main, ["plan", str(path)], catch_exceptions=False).output
    release = dp.run(path, tmp_path / "run")
    run = open_run(release.path)
    written = bundle.write_bundle(run, PASSED)
    places = ("report.html", "tables/docs/report.html", "tables/pats/report.html", "joins/seen/report.html")
    texts = {name: (release.path / name).read_text() for name in places}
    flat = {name: " ".join(text.split()) for name, text in texts.items()}
    assert SENTENCE in " ".join(plan.split())
    assert SENTENCE in flat["report.html"]
    assert SENTENCE in " ".join((written / "README.md").read_text().split())
    assert "docs.field, docs.senior public" in flat["tables/docs/report.html"]
    assert "docs.field public" in flat["joins/seen/report.html"]
    assert (
        "public"
        not in flat["tables/pats/report.html"].split("How it was protected</h2>")[1].split("<h2")[0].split("ledger")[0]
    )
    assert open_part(release.path / "joins/seen").manifest["public_attributes"] == ["docs.field"]
