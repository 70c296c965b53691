"""Scores of SDMetrics in the comparison: the frames and metadata that it gets, and its results on known tables.

SDMetrics needs pandas 2, so it is in an extra of its own and not in `test`. Tests of its results are skipped without
it; the last test runs them in an environment of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpscale.domain import Domain
from dpscale.evaluation.inputs import size_of
from dpscale.evaluation.sdmetrics_scores import frame_of, sdmetrics_scores, table_metadata
from tests.evaluation.small import file_states, run_compare

ROOT = Path(__file__).parents[2]
DOMAIN = Domain.from_dict({"attributes": {
    "age": {"kind": "integer", "low": 20, "high": 60, "round": 20, "outside": "category"},
    "fare": {"kind": "bins", "edges": [0, 10, 40], "nulls": "category"},
    "day": {"kind": "date", "by": "month", "low": "2019-01", "high": "2019-03", "nulls": "category"},
    "ill": {"kind": "boolean", "nulls": "category"},
    "city": {"kind": "categories", "values": ["Rome", "Oslo"], "outside": "category", "nulls": "category"},
    "code": {"kind": "coded", "size": 2, "outside": "category", "nulls": "category"},
}})  # fmt: skip
ATTRIBUTES = [DOMAIN[name] for name in DOMAIN.names]


@pytest.fixture
def require_sdmetrics() -> None:
    pytest.importorskip("sdmetrics", reason="SDMetrics is an extra: pip install 'dpscale[sdmetrics]'")


needs_sdmetrics = pytest.mark.usefixtures("require_sdmetrics")


def draw_codes(rows: int, seed: int = 0) -> np.ndarray:
    """Draw codes in which the city follows the age and all other attributes are independent."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size_of(one), rows) for one in ATTRIBUTES], axis=1).astype(np.int32)
    codes[:, 4] = codes[:, 0]
    return codes


# ---- frames and metadata --------------------------------


def test_metadata_follow_from_domain() -> None:
    kinds = {name: one["sdtype"] for name, one in table_metadata(ATTRIBUTES)["tables"]["rows"]["columns"].items()}
    assert kinds == {"age": "numerical", "fare": "numerical", "day": "datetime", "ill": "boolean",
                     "city": "categorical", "code": "categorical"}  # fmt: skip


def test_frame_has_a_value_for_each_compared_cell() -> None:
    sizes = [size_of(one) for one in ATTRIBUTES]
    cells = np.stack([np.minimum(np.arange(max(sizes)), size - 1) for size in sizes], axis=1).astype(np.int32)
    frame = frame_of(ATTRIBUTES, cells)
    values = {name: [None if pd.isna(one) else one for one in frame[name][:size]]
              for name, size in zip(frame, sizes, strict=True)}  # fmt: skip
    assert values == {
        "age": [20.0, 40.0, 60.0, None],
        "fare": [5.0, 25.0, None],
        "day": [*map(pd.Timestamp, ("2019-01-01", "2019-02-01", "2019-03-01")), None],
        "ill": [False, True, None],
        "city": ["Rome", "Oslo", "(outside)", None],
        "code": ["0", "1", None],
    }


# ---- scores of the real package --------------------------------


@needs_sdmetrics
def test_equal_tables_have_the_best_scores() -> None:
    found = sdmetrics_scores(ATTRIBUTES, draw_codes(4000), draw_codes(4000))
    assert found["quality"]["properties"] == {"Column Shapes": 1.0, "Column Pair Trends": 1.0}
    assert found["diagnostic"]["properties"] == {"Data Validity": 1.0, "Data Structure": 1.0}
    assert tuple(one["attribute"] for one in found["shapes"]) == DOMAIN.names
    assert {one["score"] for one in (*found["shapes"], *found["validity"], *found["pairs"])} == {1.0}


@needs_sdmetrics
def test_shape_of_a_category_is_one_minus_its_total_variation_distance() -> None:
    data, rows = draw_codes(4000), draw_codes(3000, seed=1)
    rows[:2000, 5] = 0
    found = {one["attribute"]: one for one in sdmetrics_scores(ATTRIBUTES, data, rows)["shapes"]}
    present = [codes[codes[:, 5] < 2, 5] for codes in (data, rows)]  # missing values have no part in it
    shares = [np.bincount(own) / len(own) for own in present]
    assert found["code"]["metric"] == "TVComplement"
    assert found["code"]["score"] == pytest.approx(1 - np.abs(shares[0] - shares[1]).sum() / 2)
    assert found["age"]["metric"] == found["day"]["metric"] == "KSComplement"


@needs_sdmetrics
def test_lost_dependence_is_the_lowest_pair_and_absent_values_are_invalid() -> None:
    data, rows = draw_codes(4000), draw_codes(4000, seed=1)
    rows[:, 4] = np.random.default_rng(2).permutation(rows[:, 4])
    data = data[data[:, 5] != 1]
    found = sdmetrics_scores(ATTRIBUTES, data, rows)
    assert found["pairs"][0]["attributes"] == ["age", "city"]
    assert found["pairs"][0]["score"] < 0.7
    valid = {one["attribute"]: one["score"] for one in found["validity"]}
    assert valid["code"] == pytest.approx((rows[:, 5] != 1).mean())
    assert valid["city"] == 1


@needs_sdmetrics
def test_compare_adds_scores_to_private_report_only(reference: Path, tmp_path: Path) -> None:
    before = file_states(reference)
    for name in ("one", "two"):
        arguments = (reference / "run", reference / "data", "--out", tmp_path / name, "--sdmetrics")
        result = run_compare(*arguments)
        assert result.exit_code == 0, result.output
        assert result.output == f"private report, not for publication: {tmp_path / name / 'compare.html'}\n"
    assert file_states(reference) == before
    page, figures = ((tmp_path / "one" / name).read_text() for name in ("compare.html", "compare.json"))
    scores = json.loads(figures)["sdmetrics"]
    assert scores == json.loads((tmp_path / "two/compare.json").read_text())["sdmetrics"]
    assert 0.9 < scores["quality"]["score"] < 1
    assert f"<strong>{scores['quality']['score']:.3f}</strong>" in page
    assert len(scores["shapes"]) == 5


# ---- without the package --------------------------------


def test_report_without_the_option_has_no_scores(reference: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    assert run_compare(reference / "run", reference / "data", "--out", tmp_path / "out").exit_code == 0
    assert "sdmetrics" not in json.loads((tmp_path / "out/compare.json").read_text())
    assert "SDMetrics" not in (tmp_path / "out/compare.html").read_text()


def test_missing_sdmetrics_is_reported_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = ("sdmetrics", "sklearn")
    for name in [one for one in sys.modules if one.split(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    result = run_compare(tmp_path / "no-run", tmp_path / "no-data", "--out", tmp_path / "out", "--sdmetrics")
    assert result.exit_code == 2
    assert result.output == (
        "dpscale: SDMetrics: not installed; expected version 0.29 or later; pip install 'dpscale[sdmetrics]'; "
        "more: docs/rows.md\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_scores_in_an_environment_with_sdmetrics(tmp_path: Path) -> None:
    """Run this module with the newest SDMetrics of the extra; DPSCALE_SDMETRICS names an environment that has it."""
    python = Path(os.environ.get("DPSCALE_SDMETRICS") or tmp_path / "venv") / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
        install = [python, "-m", "pip", "install", "-q", f"{ROOT}[sdmetrics]", "hypothesis", "pytest", "pytest-timeout"]
        if subprocess.run(install, capture_output=True).returncode:
            pytest.skip("SDMetrics cannot be installed here: no registry")
    tests = [python, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "tests/evaluation/test_sdmetrics.py"]
    done = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
