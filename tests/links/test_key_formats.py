"""Keys of public formats: foreign keys have those of their parents, and formats of other columns are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import dpscale as dp
from dpscale.base.errors import JobError
from tests.links.small import DOMAINS, make_job, write_job
from tests.messages import refused

PATTERNS = {"persons": ("id", "P-[0-9]{4}"), "products": ("code", "[A-Z]{2}\\d{3}"), "orders": ("number", "\\d{8}")}


def write_formats(folder: Path, formats: dict[str, dict[str, Any]]) -> Path:
    path = write_job(folder)
    for name, own in formats.items():
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": DOMAINS[name], "formats": own}))
    return path


def test_foreign_keys_have_the_texts_of_keys(tmp_path: Path) -> None:
    public = [name for name, one in make_job()["tables"].items() if one.get("public")]
    stated = {
        name: {column: {"pattern": pattern}} for name, (column, pattern) in PATTERNS.items() if name not in public
    }
    release = dp.run(write_formats(tmp_path, stated), run_dir=tmp_path / "run")
    tables = {name: one.compute() for name, one in release.synthetic().items()}
    for name in stated:
        column, pattern = PATTERNS[name]
        assert tables[name][column].is_unique
        assert all(re.fullmatch(pattern, text) for text in tables[name][column])
    assert set(tables["orders"]["person"].dropna()) <= set(tables["persons"]["id"])
    assert set(tables["ratings"]["id"]) <= set(tables["persons"]["id"])
    assert set(tables["ratings"]["code"]) <= set(tables["products"]["code"])


@pytest.mark.parametrize(
    ("name", "form"),
    [("orders", {"person": {"pattern": "\\d{9}"}}), ("countries", {"flag": {"pattern": "\\d{9}"}}),
     ("persons", {"id": {"pattern": "\\d{9}", "unique": False}})],
)  # fmt: skip
def test_formats_of_other_columns_are_refused(tmp_path: Path, name: str, form: dict[str, Any]) -> None:
    with refused(JobError):
        dp.run(write_formats(tmp_path, {name: form}), run_dir=tmp_path / "run")
