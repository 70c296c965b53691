"""What holds for every test.

Each run has a plan store and a state folder of its own: nothing that was solved before can hide a fault. Hypothesis
has no deadline: how long a thing takes is for benchmarks to say, not for tests.
"""

import os
import tempfile

import pytest
from hypothesis import settings

os.environ["DPSCALE_PROGRESS"] = "86400"  # lines that come with the clock would be in what tests read
os.environ["DPSCALE_STATE"] = tempfile.mkdtemp(prefix="dpscale-state-")
os.environ["DPSCALE_STORE"] = tempfile.mkdtemp(prefix="dpscale-store-")
settings.register_profile("dpscale", deadline=None)
settings.load_profile("dpscale")


@pytest.fixture
def place(tmp_path):
    """A folder with the small table as three Parquet files."""
    from tests.runs.small import table, write_table

    write_table(tmp_path / "data", table())
    return tmp_path


PLOTS = ("error_plot", "share_plot", "trace_plot")


@pytest.fixture(scope="session", autouse=True)
def plain_reports():
    """In this process reports have no plots, most of a small run's time; a test of the page asks for `plots`."""
    from dpscale.runs.stages import report

    with pytest.MonkeyPatch.context() as patch:
        for name in PLOTS:
            patch.setattr(report, name, lambda *_: "")
        yield


@pytest.fixture
def plots(monkeypatch):
    """Reports have their plots."""
    from dpscale.answers import report as drawing
    from dpscale.runs.stages import report

    for name in PLOTS:
        monkeypatch.setattr(report, name, getattr(drawing, name))
