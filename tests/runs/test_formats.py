"""Columns of public formats in synthetic rows: unique, the same in any files, and never read from the data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

import dpscale as dp
from dpscale.base.errors import JobError
from tests.messages import refused
from tests.runs.small import DOMAIN, job, table, write_table

FORMATS = {"person": {"pattern": "[A-Z]{2}[0-9]{2}"}, "note": {"pattern": "[a-c ]{2,5}", "unique": False}}


def released(path: Path, formats: dict[str, Any] = FORMATS, **changes: Any) -> dp.Release:
    folder = path.parent
    if not (folder / "data").exists():
        write_table(folder / "data", table(600))
    (folder / "domain.toml").write_text(tomli_w.dumps({**DOMAIN, "formats": formats}))
    content = job(synthesize={"rows": 500}, engine={"scheduler": "synchronous", "seed": 1}) | changes
    (folder / "job.toml").write_text(tomli_w.dumps(content))
    return dp.run(folder / "job.toml", run_dir=path)


def rows_of(release: dp.Release) -> pd.DataFrame:
    found = release.synthetic()
    assert not isinstance(found, dict)
    return found.compute().reset_index(drop=True)


def test_rows_have_formats_in_any_files(tmp_path: Path) -> None:
    """The order of columns is that of the input; other columns are those of rows without formats."""
    rows = rows_of(released(tmp_path / "one"))
    assert list(rows) == ["person", "age", "sex", "income", "code", "note"]
    assert rows["person"].is_unique
    for name, form in FORMATS.items():
        assert all(re.fullmatch(str(form["pattern"]), text) for text in rows[name])

    parts = rows_of(released(tmp_path / "parts", synthesize={"rows": 500, "parts": 7}))
    text = rows_of(released(tmp_path / "text", synthesize={"rows": 500, "format": "csv"}))
    plain = rows_of(released(tmp_path / "plain", {}))
    for name in FORMATS:
        assert list(rows[name]) == list(parts[name]) == list(text[name])
    pd.testing.assert_frame_equal(rows.drop(columns=list(FORMATS)), plain)


def test_schedulers_give_equal_bytes(tmp_path: Path) -> None:
    found = []
    for scheduler in ("synchronous", "threads"):
        release = released(tmp_path / scheduler, synthesize={"rows": 500, "parts": 3},
                           engine={"scheduler": scheduler, "seed": 1})  # fmt: skip
        found.append([file.read_bytes() for file in sorted((release.path / "synthetic").glob("*.parquet"))])
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_too_few_texts_are_refused_before_the_data_is_read(tmp_path: Path) -> None:
    few = {"person": {"pattern": "[0-9]{2}"}}
    with refused(JobError):
        released(tmp_path / "few", few)
    assert not (tmp_path / "few/measurements").exists()
    repeated = {"person": {"pattern": "[0-9]{2}", "unique": False}}
    assert rows_of(released(tmp_path / "repeated", repeated))["person"].nunique() <= 100


def test_synthesizer_gives_formats(tmp_path: Path) -> None:
    domain = dp.Domain({"age": dp.bins(0, 10, 2), "sex": ["F", "M"]}, formats={"id": "[0-9]{2}"})
    fitted = dp.Synthesizer(domain, epsilon=1.0, degree=2, ledger=tmp_path / "ledger.sqlite").fit(table(600))
    rows = fitted.sample(100)
    assert sorted(rows["id"]) == [f"{number:02}" for number in range(100)]
    chosen = fitted.sample(40, given={"sex": "F"}, random_state=3)
    assert chosen["id"].is_unique
    with refused(JobError):
        fitted.sample(101)
    with refused(JobError):
        fitted.sample(101, random_state=3)
