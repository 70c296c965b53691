"""How sure the answers are: relative errors, and how many errors exceed what they belong to, by family and degree.

Read from the answer files: released values and their standard errors alone. Of very many rows some whole files tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.storage.files import reading

MOST_ROWS = 1 << 21


def sureness(folder: Path, index: Any) -> Iterator[dict[str, Any]]:
    """Of each family and degree: sets, queries, typical (median) and largest error in records, the median of
    error / estimate, and the share of answers whose error exceeds them; None where no error is told."""
    family, queries, errors = (index[name].to_numpy() for name in ("family", "queries", "rms_error"))
    degrees = index["attributes"].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    for name, degree in dict.fromkeys(zip(family.tolist(), degrees.tolist(), strict=True)):
        mine = (family == name) & (degrees == degree)
        told = errors[mine][np.nan_to_num(errors[mine]) > 0]
        found = {"family": name, "degree": degree, "sets": int(mine.sum()), "queries": int(queries[mine].sum()),
                 "typical": float(np.median(told)) if told.size else None,
                 "largest": float(told.max()) if told.size else None}  # fmt: skip
        files = dict.fromkeys(index["file"].filter(mine).drop_null().to_pylist())
        yield found | (_relative(folder, list(files)) if told.size else {"relative": None, "beyond": None})


def _relative(folder: Path, files: list[str]) -> dict[str, float | None]:
    """Median of |error / estimate|, and the share above 1."""
    import pyarrow.parquet as pq

    held = list[Floats]()
    for name in files:
        with reading(folder / name) as file:
            table = pq.read_table(file, columns=["estimate", "std_error"])
        estimate, error = (table[column].to_numpy() for column in ("estimate", "std_error"))
        held.append(error / np.maximum(np.abs(estimate), 1e-9))
        if sum(map(len, held)) > MOST_ROWS:
            break
    ratios = np.concatenate(held) if held else np.zeros(0)
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return {"relative": None, "beyond": None}
    return {"relative": float(np.median(ratios)), "beyond": float((ratios > 1).mean())}
