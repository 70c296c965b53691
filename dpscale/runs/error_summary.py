"""Relative standard errors of released answers, by query family and number of attributes.

They are computed from the answer files, that is from released values and their standard errors. If there are very many
rows, some whole files are a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import pa, pq
from dpscale.base.numerics import Floats
from dpscale.storage.files import reading, writing

MOST_ROWS = 1 << 21


def relative_errors(folder: Path, index: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield a summary of each family and degree.

    Its entries are family, degree, sets, queries, the median (typical) and largest error in records, the median of
    error / estimate (relative), and the share of answers whose error exceeds the estimate (beyond). They are None if no
    error is known.
    """
    family, queries, errors = (index[name].to_numpy() for name in ("family", "queries", "rms_error"))
    degrees = index["attributes"].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    for name, degree in dict.fromkeys(zip(family.tolist(), degrees.tolist(), strict=True)):
        mine = (family == name) & (degrees == degree)
        known = errors[mine][np.nan_to_num(errors[mine]) > 0]
        found = {"family": name, "degree": degree, "sets": int(mine.sum()), "queries": int(queries[mine].sum()),
                 "typical": float(np.median(known)) if known.size else None,
                 "largest": float(known.max()) if known.size else None}  # fmt: skip
        files = dict.fromkeys(index["file"].filter(mine).drop_null().to_pylist())
        yield found | (_relative(folder, list(files)) if known.size else {"relative": None, "beyond": None})


def _relative(folder: Path, files: list[str]) -> dict[str, float | None]:
    """Return the median of |error / estimate|, and the share of ratios above 1."""
    parts = list[Floats]()
    for name in files:
        with reading(folder / name) as file:
            table = pq.read_table(file, columns=["estimate", "std_error"])
        estimate, error = (table[column].to_numpy() for column in ("estimate", "std_error"))
        parts.append(error / np.maximum(np.abs(estimate), 1e-9))
        if sum(map(len, parts)) > MOST_ROWS:
            break
    ratios = np.concatenate(parts) if parts else np.zeros(0)
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return {"relative": None, "beyond": None}
    return {"relative": float(np.median(ratios)), "beyond": float((ratios > 1).mean())}


def write_trace(path: Path, rows: list[dict[str, Any]] | None) -> None:
    """Write trace.parquet, a row for every selected measurement; write no file if `rows` is None.

    Columns: round, rank, attributes, privacy_cost (squared μ of the measurement with its selection), moved (L1 change
    of the estimate of the selected marginal, in records), expected_noise (L1 error expected from its noise alone).
    """
    if rows is None:
        return
    schema = pa.schema([("round", pa.int32()), ("rank", pa.int32()), ("attributes", pa.list_(pa.string())),
                        ("privacy_cost", pa.float64()), ("moved", pa.float64()),
                        ("expected_noise", pa.float64())])  # fmt: skip
    with writing(path, durable=False) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a trace; an empty list if there is no file."""
    if not path.exists():
        return []
    with reading(path) as file:
        return list(pq.read_table(file).to_pylist())
