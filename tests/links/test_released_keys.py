"""Keys of released files: rows of keys, degrees, repeated pairs and samples compared with pandas; planted faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpscale as dp
from dpscale.runs.linked_tables import INDEX, LinkedTables
from dpscale.runs.links.keys import KeyIndex, numbered_keys, released_ends
from tests.links.shapes import SHAPES, make_frames, write_shape
from tests.running import linked


@pytest.mark.parametrize("prefix", ["", "film (new)-"])
def test_numbered_keys_need_no_index(prefix: str) -> None:
    """Keys beyond the table, other texts, leading zeros and nulls have no row."""
    keys = numbered_keys(np.array([3, -1, 0, 9, 10, 4]), prefix)
    assert keys.to_pylist() == [f"{prefix}{n}" if prefix else n for n in (3,)] + [None] + keys.to_pylist()[2:]
    found, missing = KeyIndex(10, prefix).find(pa.table({"key": keys}), ("key",))
    assert found.tolist() == [3, -1, 0, 9, -1, 4]
    assert missing.tolist() == [False, True, False, False, False, False]
    if prefix:
        others = pa.table({"key": [f"{prefix}03", "3", f"x{prefix}3", f"{prefix}3 ", f"{prefix}7"]})
        assert KeyIndex(10, prefix).find(others, ("key",))[0].tolist() == [-1, -1, -1, -1, 7]


def run_of_pairs(folder: Path) -> tuple[LinkedTables, pd.DataFrame]:
    path = write_shape(folder, SHAPES["pairs"], make_frames(SHAPES["pairs"], {}, 0), 20.0)
    run = linked(dp.run(path, folder / "run").path)
    return run, pd.read_parquet(run.path / "synthetic/pairs/part-00000.parquet")


def write_pairs(run: LinkedTables, frames: list[pd.DataFrame]) -> None:
    index: dict[str, Any] = json.loads((run.path / "synthetic" / INDEX).read_text())
    index["pairs"] = [f"pairs/part-{number:05d}.parquet" for number in range(len(frames))]
    for name, frame in zip(index["pairs"], frames, strict=True):
        frame.to_parquet(run.path / "synthetic" / name, index=False)
    (run.path / "synthetic" / INDEX).write_text(json.dumps(index))


def test_files_of_pairs_have_the_degrees_of_all_pairs(tmp_path: Path) -> None:
    """Pairs in one file or three; a repeated pair, a null and a key without a row are found wherever they are."""
    run, pairs = run_of_pairs(tmp_path)
    link = run.job.link[0]
    root, films = (pd.read_parquet(run.path / f"synthetic/{name}/part-00000.parquet")[key]
                   for name, key in (("root", "id"), ("film", "f")))  # fmt: skip
    for frames in ([pairs], [pairs.iloc[number::3] for number in range(3)]):
        write_pairs(run, frames)
        found = released_ends(run, link, 7)
        assert (found.links, found.missing, found.null, found.absent, found.repeated) == (len(pairs), 0, *[False] * 3)
        assert found.degrees[0].tolist() == pairs.id.value_counts().reindex(root).fillna(0).tolist()
        assert found.degrees[1].tolist() == pairs.f.value_counts().reindex(films).fillna(0).tolist()
        assert found.sample.shape[1] == len(np.arange(0, len(pairs), -(-len(pairs) // 7)))
    other = pairs.iloc[:1].assign(f=-5)
    for fault, extra in (("repeated", pairs.iloc[:1]), ("absent", other), ("null", other.assign(f=pd.NA))):
        write_pairs(run, [pairs, extra.astype({"f": "Int64"})])
        assert getattr(released_ends(run, link, 7), fault)
