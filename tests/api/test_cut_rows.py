"""The bound on the rows of a unit is required, and every reader learns that further rows are cut."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main

DOMAIN = dp.Domain(a=3, b=2)
SENTENCE = "at most 2 rows of one business are counted"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"business": rng.integers(0, 40, 1000), "a": rng.integers(0, 3, 1000),
                         "b": rng.integers(0, 2, 1000)})  # fmt: skip
    plan = dp.plan([["a", "b"]], DOMAIN, epsilon=5, unit="business", rows_per_unit=2, dataset="cut",
                   ledger=folder / "ledger.sqlite")  # fmt: skip
    return dp.run(plan, folder / "run", data=rows)


def test_representation_states_the_cut(release):
    assert release.total().estimate == pytest.approx(80, abs=40)  # of 1,000 rows
    assert SENTENCE in repr(release)


def test_first_sentence_of_the_report_states_the_cut(release):
    text = (release.path / "report.html").read_text()
    first = text.split("Random noise")[0]
    assert SENTENCE in first


def test_published_files_state_the_cut(release, tmp_path):
    command = ["publish", str(release.path), "--out", str(tmp_path / "out"), "--format", "csv", "--format", "parquet"]
    assert CliRunner().invoke(main, command, catch_exceptions=False).exit_code == 0
    assert SENTENCE in (tmp_path / "out/README.txt").read_text()
    described = json.loads(next((tmp_path / "out").glob("croissant.json")).read_text())
    assert SENTENCE in described["description"]


def test_rows_as_units_state_no_cut(tmp_path):
    plan = dp.plan([["a", "b"]], DOMAIN, epsilon=5, dataset="rows", ledger=tmp_path / "ledger.sqlite")
    release = dp.run(plan, tmp_path / "run", data=pd.DataFrame({"a": [0, 1, 2], "b": [0, 1, 1]}))
    assert "counted" not in repr(release)
