"""Every mechanism with every kind of part of a release: the table of docs/mechanisms.md says what works.

A "yes" is a run that ends and whose answers are close to the exact counts. The other marks, `not yet` and `never`, are
refusals in a sentence before anything is charged.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import dpscale as dp
from dpscale.base.errors import DpscaleError
from dpscale.mechanisms import mechanism_names
from tests.features import FEATURES, ROWS, feature_job, frame

PAGE = Path(__file__).parents[1] / "docs" / "mechanisms.md"
MARKS = ("yes", "not yet", "never")
FAR = 80  # records; the standard deviation of the noise of a count is at most 10


def stated() -> dict[tuple[str, str], str]:
    """Return the marks of the table by mechanism and feature."""
    text = PAGE.read_text("utf-8").partition("<!-- features -->")[2].partition("<!-- end -->")[0]
    (_, *features), _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")]
                                for line in text.strip().splitlines()]  # fmt: skip
    return {(name, feature): mark for name, *marks in rows for feature, mark in zip(features, marks, strict=True)}


def counts_of_sex(release: dp.Release, feature: str) -> np.ndarray:
    """Return the estimated numbers of records by sex."""
    if feature == "SELECT":
        return release.query("query-1").n.to_numpy()
    given = {"period": "2026-02"} if feature == "periods" else {}
    whole = release.tables["people"] if feature in ("several tables", "joins") else release
    return np.asarray(whole.marginal(("sex",), **given))


def test_table_of_the_documents_has_every_mechanism_and_feature():
    assert list(stated()) == [(name, feature) for name in mechanism_names() for feature in FEATURES]
    assert set(stated().values()) == set(MARKS)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("mechanism", mechanism_names())
def test_mechanism_has_what_the_documents_say(mechanism, feature, tmp_path):
    job = feature_job(tmp_path, feature, mechanism)
    if stated()[mechanism, feature] != "yes":
        with pytest.raises(DpscaleError) as caught:
            dp.run(job, run_dir=tmp_path / "run", progress=None)
        assert re.search(r"; expected .*; ", str(caught.value).splitlines()[0])
        assert not (tmp_path / "ledger.sqlite").exists()
        return
    found = counts_of_sex(dp.run(job, run_dir=tmp_path / "run", progress=None), feature)
    exact = frame().sex.value_counts().sort_index().to_numpy()
    assert np.abs(found[:2] - exact).max() < FAR < ROWS / 2
