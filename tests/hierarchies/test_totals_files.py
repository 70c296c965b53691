"""Files of public totals: each invalid row is refused with one sentence, and each valid form is read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpscale.base.errors import DomainError
from dpscale.domain import Domain
from tests.messages import refused

ROWS = [("x", "p", 3), ("x", "q", 0), ("y", "p", 5), ("y", "q", 7)]


@pytest.fixture
def domain():
    kind = "categories"
    return Domain.from_dict(
        {"attributes": {"a": {"kind": kind, "values": ["x", "y"]}, "b": {"kind": kind, "values": ["p", "q"]}}}
    )


def read(folder, domain, rows, suffix="csv", **fields):
    """Write rows to a file and return the total that is read from it."""
    path, frame = folder / f"total.{suffix}", pd.DataFrame(rows, columns=["a", "b", "count"])
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    table = {"path": str(path), "attributes": ["a", "b"], "origin": "external", **fields}
    return domain.with_totals([table]).public_totals[0]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_are_read_in_any_order(tmp_path, domain, suffix):
    found = read(tmp_path, domain, ROWS[::-1], suffix)
    np.testing.assert_array_equal(found.counts, [[3, 0], [5, 7]])


@pytest.mark.parametrize("rows", [
    [*ROWS, ("x", "p", 3)],
    ROWS[:-1],
    [*ROWS[:-1], ("y", "r", 7)],
    [*ROWS[:-1], ("y", None, 7)],
    [*ROWS[:-1], ("y", "q", "7.5")],
    [*ROWS[:-1], ("y", "q", 2**70)],
    [*ROWS[:-1], ("y", "q", -1)],
])  # fmt: skip
def test_invalid_rows_are_refused(tmp_path, domain, rows):
    with refused(DomainError):
        read(tmp_path, domain, rows)


@pytest.mark.parametrize("fields", [
    {"origin": None},
    {"origin": "records"},
    {"count": "people"},
    {"attributes": "a"},
    {"attributes": ["a", "z"]},
    {"path": "total.txt"},
    {"path": "absent.csv"},
    {"sha256": "0" * 64},
    {"colum": "count"},
])  # fmt: skip
def test_invalid_fields_are_refused(tmp_path, domain, fields):
    with refused(DomainError):
        read(tmp_path, domain, ROWS, **fields)


def test_impossible_cells_have_no_records(tmp_path, domain):
    """A cell of a structural zero may be left out, or have the count 0."""
    domain = Domain.from_dict({**domain.to_dict(), "rule": [{"rule": "if a = 'x' then b != 'q'"}]})
    for rows in (ROWS, [ROWS[0], *ROWS[2:]]):
        assert read(tmp_path, domain, rows).counts[0, 1] == 0
    with refused(DomainError):
        read(tmp_path, domain, [ROWS[0], ("x", "q", 1), *ROWS[2:]])
