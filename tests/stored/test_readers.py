"""A run is read from its files: changed defaults, schedules and conversions change no answer and no charge.

The oracle is the run itself, read by the code that wrote it; a reader that plans again is planted and fails.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.check import FORMAT
from dpscale.base import VERSION
from dpscale.ledger.schema import VERSION as LEDGER_VERSION
from dpscale.mechanisms import mechanism
from dpscale.mechanisms.aim import state
from dpscale.plans.plan import read_content
from dpscale.privacy import conversion
from dpscale.runs import manifest
from dpscale.runs.opening import open_part
from tests.messages import refused
from tests.selection import mostly_slow
from tests.stored.runs import case_folder, estimates, run_case, write_case

ADAPTIVE = ("aim-grem", "published", "aim-pgm", "mst")
FIXED = ("weighted-residuals", "hdmm", "pure")


@pytest.fixture(scope="module", params=mostly_slow((*ADAPTIVE, *FIXED), ("aim-grem", "hdmm")))
def finished(request):
    """Case, folder and estimates of a finished run."""
    with case_folder(request.param) as folder:
        run_case(write_case(request.param, folder))
        yield request.param, folder, estimates(folder / "run")


@pytest.fixture
def later_version(monkeypatch):
    """No decision can be planned, and epsilon and delta are converted differently."""
    convert = conversion.gdp_mu
    monkeypatch.setattr(conversion, "gdp_mu", lambda *given: convert(*given) * (1 - 1e-6))
    monkeypatch.setattr(state, "first_decision", lambda *_: 1 / 0)
    monkeypatch.setattr(state.AimState, "decide", lambda *_: 1 / 0)
    monkeypatch.setattr(state.AimState, "selection", property(lambda _: 1 / 0))


def same_estimates(found, expected):
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name], equal_nan=True) for name in expected
    )


def test_answers_do_not_depend_on_planning(finished, later_version):
    _, folder, expected = finished
    assert same_estimates(estimates(folder / "run"), expected)


def test_commands_read_a_run_of_an_earlier_version(finished, later_version, tmp_path):
    """Each command succeeds on a copy whose answers are gone, and the ledger keeps its bytes."""
    _, folder, _ = finished
    ledger = (folder / "ledger.sqlite").read_bytes()
    shutil.rmtree(folder / "run" / "answers")
    for command in (
        ["run", "--only", "reconstruct"],
        ["run", "--only", "report"],
        ["job", "status"],
        ["publish", "--out", str(tmp_path / "tables")],
    ):
        result = CliRunner().invoke(main, [*command, str(folder / "run")])
        assert result.exit_code == 0, result.output
    assert (folder / "ledger.sqlite").read_bytes() == ledger


def test_a_reader_that_plans_again_is_found(finished, later_version):
    """Planted: without the stored first decision or budget, planning is repeated and the answers are lost or change."""
    _, folder, expected = finished
    plan, entry = folder / "run" / "plan" / "plan.json", folder / "run" / "manifest.json"
    before = plan.read_bytes(), entry.read_bytes()
    content, written = json.loads(before[0]), json.loads(before[1])
    content.pop("first", None)
    plan.write_text(json.dumps(content))
    entry.write_text(json.dumps(written | {"privacy": {**written["privacy"], "budget": "1"}}))
    try:
        with pytest.raises((dp.JobError, AssertionError)):
            assert same_estimates(estimates(folder / "run"), expected)
    finally:
        plan.write_bytes(before[0])
        entry.write_bytes(before[1])


def test_options_in_a_plan_file_are_read_exactly():
    """Older plans have constants of today as options; a plan with another value of one is refused."""
    for name in ADAPTIVE:
        options = mechanism(name if name != "published" else "aim-grem").Options
        exact = options().exact()
        for given in (exact, exact | options.fixed):
            assert options.from_exact(given).exact() == exact
        with refused(ValueError):
            options.from_exact(exact | {"grain": "0.6"})


def test_a_plan_with_an_unknown_version_is_refused(finished):
    case, folder, _ = finished
    if case not in ADAPTIVE:
        pytest.skip("only adaptive plans have a version of their own")
    plan = folder / "run" / "plan" / "plan.json"
    before = plan.read_text()
    plan.write_text(before.replace(read_content(plan.parent)["version"], "aim-grem/99"))
    try:
        with refused(dp.JobError):
            open_part(folder / "run").measurement_plan  # noqa: B018
    finally:
        plan.write_text(before)


def test_the_manifest_names_format_mechanism_and_project(finished):
    case, folder, _ = finished
    written = open_part(folder / "run").manifest
    assert written["version"] == manifest.VERSION
    assert written["mechanism"]["version"] == mechanism(written["mechanism"]["name"]).version
    assert written["versions"]["dpscale"] == VERSION == dp.__version__
    assert case in ADAPTIVE or written["privacy"]["budget"]


def test_the_compatibility_document_lists_the_current_formats():
    """A changed format without a new row, or a new row without a new version of the project, fails."""
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+) \| (\d+) \| (\S+) \|$", page, re.MULTILINE)
    assert rows[-1] == (VERSION, str(manifest.VERSION), str(LEDGER_VERSION), FORMAT.split("/")[1])
    assert len({version for version, *_ in rows}) == len(rows)
