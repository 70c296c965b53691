"""Rows of SDV's hierarchical modelling algorithm (HMA), which is not private: a peer of `linked_tables.py --hma`.

Run with an interpreter that has SDV, which is not a dependency of dpscale:

    PYTHON benchmarks/hma_rows.py FOLDER

FOLDER has `metadata.json`, as `dpscale tables to-sdv` prints it, and TABLE.parquet of every table. Synthetic tables of
the same size are written to FOLDER/hma.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pandas as pd


def main(folder: Path) -> None:
    from sdv.metadata import Metadata
    from sdv.multi_table import HMASynthesizer

    warnings.simplefilter("ignore")
    content = json.loads((folder / "metadata.json").read_text())
    frames = {name: pd.read_parquet(folder / f"{name}.parquet", columns=list(one["columns"]))
              for name, one in content["tables"].items()}  # fmt: skip
    synthesizer = HMASynthesizer(Metadata.load_from_dict(content), verbose=False)
    synthesizer.fit(frames)
    (folder / "hma").mkdir(exist_ok=True)
    for name, frame in synthesizer.sample(scale=1.0).items():
        frame.to_parquet(folder / "hma" / f"{name}.parquet", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
