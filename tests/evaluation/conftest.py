"""Shared fixtures: one run with synthetic rows; comparison pages have no plots unless a test uses `with_plots`."""

from pathlib import Path

import pytest

import dpscale as dp
from tests.evaluation.small import write_job

PLOTS = ("marginal_plot", "dependence_plot", "curve_plot")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` and a completed run with synthetic rows in `run`."""
    place = tmp_path_factory.mktemp("compare")
    dp.run(write_job(place), place / "run")
    return place


@pytest.fixture(autouse=True)
def disable_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_plots" not in request.fixturenames:
        for name in PLOTS:
            monkeypatch.setattr(f"dpscale.evaluation.comparison.{name}", lambda *_: "")


@pytest.fixture
def with_plots() -> None:
    """Leave the plots of the comparison page enabled."""
