"""Every refusal is one sentence that names the field, the accepted values, a remedy, and a command or page with more.

`sentences.txt` has the sentences. Nothing is lost or spent: the ledger, the files and a finished run stay as they are.
"""

import hashlib
import re
import shutil
from pathlib import Path

import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.api.planning import DATA_VARIABLE
from dpscale.ledger import Ledger
from tests.cli.refused import CALLS, CASES, COMMANDS, TABLE, write_case

CAP = ["--dataset", "people", "--delta", "1e-9"]
ROOT = Path(__file__).parents[2]
SENTENCES = Path(__file__).with_name("sentences.txt")


def read_sentences():
    """Return exit code and sentence by the name of the case."""
    found = {}
    for line in SENTENCES.read_text().splitlines():
        name, code, sentence = line.split(" | ", 2)
        found[name] = (int(code), sentence)
    return found


EXPECTED = read_sentences()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder with a finished run, which has spent its whole cap, and jobs beside it."""
    folder = tmp_path_factory.mktemp("finished")
    job = write_case(folder, "table", {})
    (folder / "other.toml").write_text(tomli_w.dumps(TABLE | {"workload": [{"family": "marginal", "degree": 1}]}))
    (folder / "adaptive.toml").write_text(tomli_w.dumps(TABLE | {"mechanism": {"name": "aim-grem"}}))
    capped = ["ledger", "cap", str(folder / "ledger.sqlite"), *CAP, "--epsilon", "1"]
    assert CliRunner().invoke(main, capped).exit_code == 0
    result = CliRunner().invoke(main, ["run", str(job), "--run-dir", str(folder / "done"), "--quiet"])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """Empty folder with the ledger, which is the current one."""
    shutil.copy(finished / "ledger.sqlite", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["ledger", "cap", "ledger.sqlite", *CAP, "--epsilon", "9"]).exit_code == 0
    return tmp_path


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    """Folder of the finished run, which is the current one."""
    monkeypatch.chdir(finished)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    return finished


def spent(path):
    with Ledger.open(path, create=False) as ledger:
        return ledger.summary()


def contents(folder):
    """Hashes of all files, without those of an open database."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file() and not path.name.startswith("ledger.sqlite")}  # fmt: skip


def check_sentence(name, code, text, folder):
    """Compare with the expected sentence, which names a command, or a page with a key or a section."""
    assert text.count("\n") == 0, text
    assert (code, text.replace(f"{folder}/", "").replace(str(folder), ".")) == EXPECTED[name]
    assert len(text) < 600
    assert ".py" not in text
    more = text.rpartition("more: ")[2]
    if command := re.fullmatch("dpscale (.*)", more):
        assert CliRunner().invoke(main, command[1].split()).exit_code == 0
        return
    page, section, key = re.fullmatch(r"(docs/[a-z/-]+\.md)(?:#([a-z-]+)|, ([a-z_.]+))?", more).groups()
    written = (ROOT / page).read_text()
    headings = re.findall(r"^#+ (.*)$", written, re.MULTILINE)
    assert section is None or section in {one.lower().replace(" ", "-") for one in headings}
    assert key is None or key.partition(".")[0] in written


@pytest.mark.parametrize(("name", "base", "changes"), CASES, ids=[name for name, *_ in CASES])
def test_job_is_refused(name, base, changes, folder):
    before = spent("ledger.sqlite")
    job = write_case(folder, base, changes)
    files = contents(folder)
    result = CliRunner().invoke(main, ["run", str(job), "--run-dir", "new", "--fresh", "--quiet"])
    check_sentence(name, result.exit_code, result.stderr.removeprefix("dpscale: ").removesuffix("\n"), folder)
    assert spent("ledger.sqlite") == before
    assert contents(folder) == files
    assert not (folder / "new").exists()


@pytest.mark.parametrize(("name", "arguments"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_command_is_refused(name, arguments, place):
    before, files = spent("ledger.sqlite"), contents(place)
    result = CliRunner().invoke(main, arguments)
    *_, text = result.stderr.removesuffix("\n").split("\n")
    check_sentence(name, result.exit_code, text.removeprefix("dpscale: "), place)
    assert spent("ledger.sqlite") == before
    assert contents(place) == files


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_call_is_refused(name, call, place, tmp_path):
    before, files = spent("ledger.sqlite"), contents(place)
    with pytest.raises(dp.DpscaleError) as caught:
        call()
    text, (note,) = str(caught.value), caught.value.__notes__
    check_sentence(name, caught.value.exit_code, f"{text}; {note}", place)
    assert spent("ledger.sqlite") == before
    assert contents(place) == files
    own = tmp_path / "ledger.sqlite"
    assert not own.exists() or not any(one["releases"] for one in spent(own)["datasets"].values())


def test_there_are_enough_cases():
    assert len({*(name for name, *_ in CASES), *(name for name, _ in COMMANDS), *(name for name, _ in CALLS)}) >= 120
    assert len(EXPECTED) == len(CASES) + len(COMMANDS) + len(CALLS)
