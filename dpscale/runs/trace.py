"""The trace of an adaptive run: what was chosen when, at what cost, how far it moved the estimates. All released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpscale.storage.files import reading, writing


def write_trace(path: Path, rows: list[dict[str, Any]] | None) -> None:
    """trace.parquet: a row for every measurement that was chosen; no file for None.

    Columns: round, rank, attributes, privacy_cost (squared μ of the measurement with its selection), moved (L1 distance
    by which the estimate of the chosen marginal moved, records), expected_noise (the L1 error that its noise alone
    would make).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if rows is None:
        return
    schema = pa.schema([("round", pa.int32()), ("rank", pa.int32()), ("attributes", pa.list_(pa.string())),
                        ("privacy_cost", pa.float64()), ("moved", pa.float64()),
                        ("expected_noise", pa.float64())])  # fmt: skip
    with writing(path, durable=False) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The rows of a trace; none where there is no file."""
    import pyarrow.parquet as pq

    if not path.exists():
        return []
    with reading(path) as file:
        return list(pq.read_table(file).to_pylist())
