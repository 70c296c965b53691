"""Every command on every kind of unusable run directory, deep nesting, and replaced files: one sentence each."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.errors import JobError
from dpscale.base.nesting import MOST_LEVELS, is_too_deep
from dpscale.workload import Workload
from tests.messages import refused
from tests.runs.disks import mount_read_only, needs_mounts, small_disk
from tests.runs.test_spent_once import DOMAIN, JOB as SPENT

JOB = SPENT.replace('"data"', '"rows.csv"') + "[synthesize]\nrows = 50\n"
READING = ("status", "publish", "compare", "refine", "discover", "allocate", "cancel", "units", "stages")
STAGES = ("allocate", "discover", "units", "measure", "reconstruct", "synthesize", "report")
COMMANDS = {
    **{name: ["run", "RUN", "--only", name] for name in STAGES},
    **{name: ["job", name, "RUN"] for name in ("status", "end", "wait", "cancel", "stages")},
    "run of a directory": ["run", "RUN"],
    "rows": ["rows", "RUN", "--rows", "50"],
    "evidence": ["evidence", "RUN", "--selftest", "TESTED"],
    "run": ["run", "JOB", "--run-dir", "RUN"],
    "plan": ["plan", "JOB", "--run-dir", "RUN"],
    "publish": ["publish", "RUN", "--out", "OUT/published"],
    "compare": ["compare", "RUN", "DATA", "--out", "OUT/compared"],
    "model": ["model", "RUN", "--out", "OUT/model"],
    "refine": ["refine", "RUN", "--run-dir", "OUT/refined", "--epsilon", "2"],
    "period": ["run", "RUN", "--period", "2024-01"],
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "rows.csv").write_text("a,b\n" + "1,1\n2,0\n" * 20)
    (folder / "domain.toml").write_text(DOMAIN)
    (folder / "job.toml").write_text(JOB)
    (folder / "tested.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    dp.run(folder / "job.toml", folder / "run")
    return folder


def call(project, name, run, out):
    places = {"RUN": run, "JOB": project / "job.toml", "DATA": project / "rows.csv", "TESTED": project / "tested.json"}
    words = [str(places.get(word, word)).replace("OUT", str(out)) for word in COMMANDS[name]]
    return CliRunner().invoke(main, words)


def sentence_of(result, codes=(2,)):
    """Return the only line of a refused command."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in codes, result.output
    [line] = [line for line in result.stderr.splitlines() if "tasks" not in line]
    return line


def file(project, place):
    place.write_text("text")


def other_folder(project, place):
    place.mkdir()
    (place / "notes.txt").write_text("text")


def copied(*changes):
    def make(project, place):
        shutil.copytree(project / "run", place)
        for change in changes:
            change(place)

    return make


def loop(project, place):
    place.symlink_to(place.with_name("back"))
    place.with_name("back").symlink_to(place)


def within_a_file(project, place):
    place.parent.rmdir()
    place.parent.write_text("text")


KINDS = {
    "a file": file,
    "another folder": other_folder,
    "below a file": within_a_file,
    "a circle of links": loop,
    "without a manifest": copied(lambda run: (run / "manifest.json").unlink()),
    "an empty manifest": copied(lambda run: (run / "manifest.json").write_text("")),
    "a manifest of other content": copied(lambda run: (run / "manifest.json").write_text("[1]")),
    "a deep manifest": copied(lambda run: (run / "manifest.json").write_text("[" * 9000 + "]" * 9000)),
    "without a job": copied(lambda run: (run / "job.toml").unlink()),
    "a deep job": copied(lambda run: (run / "job.toml").write_text("x = " + "[" * 9000 + "]" * 9000)),
    "a deep domain": copied(lambda run: (run / "domain.toml").write_text("x = " + "[" * 9000 + "]" * 9000)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_unusable_directory_is_refused_by_every_command(project, tmp_path, kind):
    place, ledger = tmp_path / "place/run", (project / "ledger.sqlite").read_bytes()
    place.parent.mkdir()
    KINDS[kind](project, place)
    for name in COMMANDS:
        # a job that was charged is refused with 3, wherever its new run would be
        sentence = sentence_of(call(project, name, place, tmp_path / "out"), (2, 3) if name == "run" else (2,))
        assert sentence.startswith("dpscale: "), name
    assert not (tmp_path / "out").exists()
    assert (project / "ledger.sqlite").read_bytes() == ledger


@needs_mounts
def test_directory_that_may_only_be_read(project, tmp_path):
    """Commands that read work; the others end in one sentence."""
    with small_disk(tmp_path / "disk", "64m") as disk:
        shutil.copytree(project / "run", disk / "run")
        with mount_read_only(disk):
            for name in COMMANDS:
                result = call(project, name, disk / "run", tmp_path)
                if name in READING:
                    assert result.exit_code == 0, (name, result.output)
                else:
                    sentence_of(result)
            release = dp.Release.open(disk / "run")
            assert len(release.synthetic()) == 50
            assert release.total().estimate > 0


def test_directory_that_is_deleted_while_planning(project, tmp_path, monkeypatch):
    from dpscale.runs.stages import plan

    make = plan.make_plan

    def delete(job, *arguments):
        found = make(job, *arguments)
        shutil.rmtree(tmp_path / "run")
        return found

    monkeypatch.setattr(plan, "make_plan", delete)
    job = (project / "job.toml").read_text().replace('"rows.csv"', f'"{project / "rows.csv"}"')
    (tmp_path / "job.toml").write_text(job.replace('"domain.toml"', f'"{project / "domain.toml"}"'))
    for command in (["plan"], ["run"]):
        result = CliRunner().invoke(main, [*command, str(tmp_path / "job.toml"), "--run-dir", str(tmp_path / "run")])
        assert "run directory" in sentence_of(result, (2, 75))
        assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize("file", ["plan/blocks.npz", "measurements"])
def test_published_tables_are_those_of_unchanged_files(project, tmp_path, file):
    """A plan or values that were replaced are refused by `publish` as by `reconstruct`."""
    run = shutil.copytree(project / "run", tmp_path / "run")
    changed = next((run / file).rglob("*.parquet")) if file == "measurements" else run / file
    if file == "measurements":
        changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    else:
        with np.load(changed) as arrays:
            np.savez(changed, **{name: -value if value.dtype.kind in "if" else value for name, value in arrays.items()})
    for name in ("publish", "evidence"):
        assert "were changed" in sentence_of(call(project, name, run, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


FAMILY = '"marginal"\ndegree = 2'
DEEP = {
    "arrays": JOB + "x = " + "[" * 5000 + "]" * 5000,
    "tables": JOB + "x = " + "{a = " * 5000 + "1" + "}" * 5000,
    "dotted keys": JOB + ".".join(["x"] * 5000) + " = 1",
    "dotted tables": JOB + "[" + ".".join(["x"] * 5000) + "]",
    "parentheses": JOB.replace(FAMILY, f'"predicates"\nconditions = ["{"(" * 5000}a = 1{")" * 5000}"]'),
    "negations": JOB.replace(FAMILY, f'"predicates"\nconditions = ["{"not " * 5000}a = 1"]'),
    "filter": JOB.replace('"rows.csv"', f'"rows.csv"\nwhere = "{"(" * 5000}a = 1{")" * 5000}"'),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEEP)
def test_deep_nesting_of_a_job_is_one_sentence(project, tmp_path, kind):
    (tmp_path / "domain.toml").write_text(DOMAIN)
    (tmp_path / "rows.csv").write_text("a,b\n1,1\n")
    (tmp_path / "job.toml").write_text(DEEP[kind])
    for command in (["plan"], ["run", "--run-dir", str(tmp_path / "run")]):
        sentence_of(CliRunner().invoke(main, [*command, str(tmp_path / "job.toml")]))
    assert sorted(os.listdir(tmp_path)) == ["domain.toml", "job.toml", "rows.csv"]


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_deep_nesting_in_python_is_one_sentence(depth):
    nested: list = []
    for _ in range(depth):
        nested = [nested]
    with refused(JobError):
        dp.run({"data": nested})
    circle: list = []
    circle.append(circle)
    assert is_too_deep({"data": circle})


def test_usual_nesting_is_accepted():
    nested: list = []
    for _ in range(MOST_LEVELS - 1):
        nested = [nested]
    assert not is_too_deep(nested)
    text = "(" * 20 + "a = 1" + ")" * 20
    assert Workload(dp.Domain(a=2)).add_conditions([f"{text} or not {text}"]).query_count == 1
    many = " or ".join(["a = 1"] * 2000)
    assert Workload(dp.Domain(a=2)).add_conditions([many]).query_count == 1
