"""All commands on one table, several tables and a growing table: one table of cases, one test.

A case is the words of a command and its expected exit code by form. A refusal is one sentence; with --json a command
prints one JSON object and nothing else; no command of this table changes the ledger.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import tomli_w
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.ledger import Ledger
from tests.audit.small import write_selftest
from tests.links import small as shop
from tests.periods import growing
from tests.runs.small import table, write_job, write_table

ROOT = Path(__file__).parents[2]
FORMS = ("one table", "several tables", "growing table")
ENGINE = {"scheduler": "synchronous", "seed": 3}
DONE, REFUSED = {}, dict.fromkeys(FORMS, 2)  # exit codes by form; 0 if none is named
GROWING = {"growing table": 2}
OF_TABLES = {"one table": 2, "growing table": 2}

CASES = {
    "run of a job": (["run", "JOB", "--run-dir", "RUN", "--quiet", "--json"], DONE),
    "run of a directory": (["run", "RUN", "--quiet", "--json"], DONE),
    "allocate": (["run", "RUN", "--only", "allocate", "--json"], DONE),
    "discover": (["run", "JOB", "--run-dir", "RUN", "--only", "discover", "--json"], DONE),
    "plan as a stage": (["run", "JOB", "--run-dir", "RUN", "--only", "plan", "--json"], DONE),
    "units": (["run", "RUN", "--only", "units", "--json"], DONE),
    "measure": (["run", "RUN", "--only", "measure", "--json"], DONE),
    "reconstruct": (["run", "RUN", "--only", "reconstruct", "--json"], DONE),
    "synthesize": (["run", "RUN", "--only", "synthesize", "--json"], DONE),
    "report": (["run", "RUN", "--only", "report", "--json"], DONE),
    "unknown stage": (["run", "RUN", "--only", "count"], REFUSED),
    "stage of a period": (["run", "RUN", "--only", "report", "--period", growing.MONTHS[0]], REFUSED),
    "directory with --fresh": (["run", "RUN", "--fresh"], REFUSED),
    "directory with --run-dir": (["run", "RUN", "--run-dir", "OUT/run"], REFUSED),
    "released period": (["run", "RUN", "--period", growing.MONTHS[0], "--json"], OF_TABLES | {"growing table": 0,
                                                                                              "several tables": 2}),
    "plan": (["plan", "JOB", "--quiet", "--json"], DONE),
    "stored plan": (["plan", "JOB", "--run-dir", "RUN", "--quiet", "--json"], DONE),
    "rows": (["rows", "RUN", "--quiet", "--json"], DONE),
    "more rows": (["rows", "RUN", "--rows", "60", "--quiet", "--json"], GROWING | {"several tables": 2}),
    "sql": (["sql", "SELECT COUNT(*) FROM t", "--data", "OUT", "--domain", "DOMAIN", "--epsilon", "1"], REFUSED),
    "table": (["table", "OUT", "--domain", "DOMAIN", "--epsilon", "1"], REFUSED),
    "publish": (["publish", "RUN", "--out", "OUT/published", "--json"], GROWING),
    "site": (["site", "RUN", "--out", "OUT/site", "--json"], DONE),
    "model": (["model", "RUN", "--json"], REFUSED),
    "refinement": (["refine", "RUN", "--epsilon", "0.5", "--plan", "--json"], GROWING | {"several tables": 2}),
    "evidence": (["evidence", "RUN", "--selftest", "TESTED", "--json"], DONE),
    "evidence of nothing": (["evidence"], REFUSED),
    "registry": (["evidence", "RUN", "--registry"], DONE),
    "ledger show": (["ledger", "show", "LEDGER", "--json"], DONE),
    "ledger verify": (["ledger", "verify", "LEDGER", "--json"], DONE),
    "status": (["job", "status", "RUN", "--json"], DONE),
    "stages": (["job", "stages", "RUN", "--json"], DONE),
    "end": (["job", "end", "RUN", "--json"], DONE),
    "wait for a run that was not submitted": (["job", "wait", "RUN"], REFUSED),
    "cancel": (["job", "cancel", "RUN"], DONE),
    "schema": (["job", "schema"], DONE),
    "options": (["job", "options"], DONE),
    "SDV": (["job", "to-sdv", "JOB"], DONE),
    "check of the job": (["check", "job", "JOB", "--json"], DONE),
    "check of a domain": (["check", "domain", "DOMAIN", "--json"], DONE),
    "check of the tables": (["check", "tables", "JOB", "--scheduler", "synchronous", "--json"], DONE),
}  # fmt: skip


def write(folder, form):
    """Write data and a job of one form; return the job file."""
    if form == "several tables":
        return shop.write_job(folder)
    if form == "one table":
        write_table(folder / "data", table())
        return write_job(folder, synthesize={"rows": 50}, engine=ENGINE)
    growing.write(folder, growing.frames(60, growing.MONTHS[:2]))
    (folder / "job.toml").write_text(tomli_w.dumps(growing.make_job(folder) | {"engine": ENGINE}))
    return folder / "job.toml"


@pytest.fixture(scope="module", params=FORMS)
def finished(request, tmp_path_factory):
    """Folder of a finished run; each test restores it."""
    folder = tmp_path_factory.mktemp("forms") / "work"
    folder.mkdir()
    job = write(folder, request.param)
    done = CliRunner().invoke(main, ["run", str(job), "--run-dir", str(folder / "run"), "--quiet"])
    assert done.exit_code == 0, done.output
    write_selftest(folder)
    return SimpleNamespace(
        form=request.param, job=job, folder=folder, kept=shutil.copytree(folder, folder.parent / "k")
    )


@pytest.fixture
def place(finished, tmp_path):
    """Words of the cases by their names, in the folder of the run as it was when it was finished."""
    shutil.rmtree(finished.folder)
    shutil.copytree(finished.kept, finished.folder)
    [ledger], domains = finished.folder.glob("ledger*.*sqlite"), sorted(finished.folder.rglob("*domain*.toml"))
    return {"JOB": finished.job, "RUN": finished.folder / "run", "OUT": tmp_path, "LEDGER": ledger,
            "TESTED": finished.folder / "selftest.json", "DOMAIN": domains[0]}  # fmt: skip


def spent(ledger):
    with Ledger.open(ledger, create=False) as opened:
        datasets = opened.summary()["datasets"]
    return {name: (one["spent"], len(one["releases"])) for name, one in datasets.items()}


@pytest.mark.parametrize("case", CASES)
def test_command_works_or_is_refused_in_one_sentence(finished, place, case):
    words, codes = CASES[case]
    before = spent(place["LEDGER"])
    command = [str(place.get(word, word)).replace("OUT", str(place["OUT"])) for word in words]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == codes.get(finished.form, 0), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    if done.exit_code:
        [sentence] = [line for line in done.stderr.splitlines() if "PRIVATE" not in line]
        assert sentence.startswith("dpscale: ")
        assert done.stdout == ""
    elif "--json" in words:
        assert isinstance(json.loads(done.stdout), dict)
    assert spent(place["LEDGER"]) == before


def leaves(group, path=()):
    """Yield the words of every command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name)


def test_commands_are_few_and_listed_in_the_contract():
    found, contract = list(leaves(main)), (ROOT / "docs" / "contract.md").read_text()
    assert len(main.commands) <= 20
    assert len(found) <= 32
    listed = contract[contract.index("## Command line") : contract.index("`SPEC` is")]
    assert [
        path for path in found if f"`dpscale {' '.join(path)}" not in listed and f"`{' '.join(path)}" not in listed
    ] == []


def test_the_table_has_every_command_that_needs_no_cluster():
    tried = {tuple(words[:2]) for words, _ in CASES.values()} | {(words[0],) for words, _ in CASES.values()}
    elsewhere = {("compare",), ("demo",), ("selftest",), ("domain", "sketch"), ("ledger", "cap"), ("ledger", "copy"),
                 ("job", "submit"), ("job", "from-sdv"), ("wizard",)}  # fmt: skip
    assert set(leaves(main)) <= tried | elsewhere
