"""Rows of SDV's hierarchical modelling algorithm (HMA), which is not private: a peer of `linked_tables.py --hma`.

Run with an interpreter that has SDV, which is not a dependency of dpscale:

    PYTHON benchmarks/rivals/hma_rows.py FOLDER

FOLDER has `metadata.json`, as `dpscale job to-sdv` prints it, and TABLE.parquet of every table. Synthetic tables are
written to FOLDER/hma, with as many rows of the largest table without a parent. SDV 2 refuses more than five tables and
chains of three.
"""

from __future__ import annotations

import argparse
import json
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
    roots = set(frames) - {one["child_table_name"] for one in content["relationships"]}
    main_table = max(roots, key=lambda name: len(frames[name]))
    for name, frame in synthesizer.sample(len(frames[main_table]), main_table).items():
        frame.to_parquet(folder / "hma" / f"{name}.parquet", index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
