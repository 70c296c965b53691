"""Progress in words: of every label, by default in Python, and nothing with None."""

import re
from pathlib import Path

import pytest

import dpscale as dp
from dpscale.base import compilation
from dpscale.base.progress import WORDS, ProgressLines, in_words, lines, shown, silent
from tests.audit.small import write
from tests.messages import refused

PACKAGE = Path(dp.__file__).parent


def test_labels_are_words():
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r'named_task\("([a-z-]+)"\)', code))
    assert named <= WORDS.keys()
    assert {label for label in WORDS if f'"{label}"' not in code.replace(f'"{label}": ', "")} == set()
    assert in_words("solve-subworkload, no answer from tcp://a") == "planning marginals, no answer from tcp://a"
    assert in_words("other-tasks") == "other tasks"


def test_runs_print_progress_unless_told_not_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPSCALE_PROGRESS", "0")
    job = write(tmp_path)
    dp.run(job, tmp_path / "first", fresh=True)
    assert re.search(r"^dpscale: counting records: 1 of \d+ tasks", capsys.readouterr().err, re.M)
    for progress in (None, lambda *_: None):
        dp.run(job, tmp_path / "second", progress=progress, fresh=True)
        assert "tasks" not in capsys.readouterr().err


def test_none_hides_compilations_too(monkeypatch):
    monkeypatch.setattr(compilation, "announced", True)
    assert shown(None) is silent
    assert not compilation.announced
    compilation.announced = True
    assert shown(False) is silent
    assert not compilation.announced
    assert shown(print) is print
    assert not compilation.announced
    assert shown(lines) is not lines
    assert compilation.announced
    compilation.announced = False
    assert isinstance(shown(True), ProgressLines)
    assert compilation.announced


def test_false_prints_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPSCALE_PROGRESS", "0")
    dp.run(write(tmp_path), tmp_path / "run", progress=False)
    assert "tasks" not in capsys.readouterr().err


@pytest.mark.parametrize("progress", ["no", 0, []], ids=str)
def test_what_cannot_be_called_is_refused_before_a_run(tmp_path, progress):
    job = write(tmp_path)
    before = set(tmp_path.iterdir())
    with refused(dp.JobError):
        dp.run(job, tmp_path / "run", progress=progress)
    with refused(dp.JobError):
        dp.Session(tmp_path / "absent.parquet", dp.Domain(a=2), tmp_path / "l.sqlite", progress=progress)
    assert set(tmp_path.iterdir()) == before
