"""One run with rows for all tests; pages without plots, unless a test asks for `drawn`."""

from pathlib import Path

import pytest

import dpscale as dp
from tests.evaluation.small import write_job

PLOTS = ("marginal_plot", "dependence_plot", "curve_plot")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` and, in `run`, a run of it that ended with rows."""
    place = tmp_path_factory.mktemp("compare")
    dp.run(write_job(place), place / "run")
    return place


@pytest.fixture(autouse=True)
def plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        for name in PLOTS:
            monkeypatch.setattr(f"dpscale.evaluation.comparison.{name}", lambda *_: "")


@pytest.fixture
def drawn() -> None:
    """Pages have their plots."""
