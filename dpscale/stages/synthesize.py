"""The synthesize stage: rows, for free and as often as asked. It reads no record and no count.

What is learnt is made once, on the driver; then every part of the table is a task of its own, whose bytes follow from
what was learnt, the release's name and the part's number.
"""

from __future__ import annotations

import json
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.engine import Engine
from dpscale.reconstruct.pairwise.chance import Chance
from dpscale.reconstruct.pairwise.learn import Learnt, learn
from dpscale.reconstruct.pairwise.pairs import Spread, wanted
from dpscale.reconstruct.pairwise.stored import LEARNT, read_learnt, write_learnt
from dpscale.runs.estimates import estimates_of, low_order_of, model_folder
from dpscale.runs.run import Run
from dpscale.sections import SynthesizeTable
from dpscale.stages.memory import check_rows
from dpscale.storage.files import listed, present, write_whole, writing
from dpscale.synthesize.cells import spread
from dpscale.synthesize.decode import column, table_of, type_of
from dpscale.synthesize.draw import Part, draw
from dpscale.synthesize.possible import Possible
from dpscale.synthesize.quality import apart, counted
from dpscale.synthesize.raking import raked

INDEX = "_rows.json"  # readers of a folder pass over names with a line before them
MOST_OPEN = 2
TASKS = 8  # that may hold all pairs at once; no number of workers, on which no byte may depend
Opened = tuple[Run, Learnt, Spread, float]
_open: dict[str, Opened] = {}


def perform(run: Run, engine: Engine) -> None:
    """Learn, draw every part, and say what there is."""
    settings, folder, columns, memory = _settings(run), model_folder(run), len(run.domain), run.job.engine.bytes
    check_rows(settings, settings.rows, columns, memory)
    if not present(folder / LEARNT):
        _learn(run, folder)
    _, learnt, cells, total = _opened(str(run.path), str(folder))
    rows = settings.rows or max(1, round(total))
    parts = settings.parts_of(rows)
    check_rows(settings, rows, columns, memory)
    _clear(run.path / "synthetic")
    items = [(str(run.path), str(folder), settings, rows, parts, number) for number in range(parts)]
    written = engine.map(write_part, items, "rows")
    names, sizes = learnt.wanted.layout.names, _sizes(learnt, cells)
    counts = [np.sum(own, axis=0) for own in zip(*(counts for _, counts in written), strict=True)]
    content = {
        "rows": rows,
        "parts": parts,
        "files": [name for name, _ in written],
        "weights": settings.weights,
        "total": total,
        "pairs": {"held": len(learnt.wanted.layout.pairs), "of": comb(len(names), 2)},
        "apart": apart(counts, names, sizes, estimates_of(run).marginal),
    }
    write_whole(run.path / "synthetic" / INDEX, json.dumps(content, indent=1).encode())


def _sizes(learnt: Learnt, cells: Spread) -> list[int]:
    return [cells.groups[name].size for name in learnt.wanted.layout.names]


def _settings(run: Run) -> SynthesizeTable:
    return run.synthesis or SynthesizeTable()


def _learn(run: Run, folder: Path) -> None:
    model = low_order_of(run)
    learnt = learn(wanted(model, run.job.engine.bytes // TASKS), run.manifest["release"])
    write_learnt(folder / LEARNT, learnt, Spread(model.groups, model.ones), model.total)


def _clear(folder: Path) -> None:
    """No part of another table stays beside those to come."""
    for name in listed(folder) if present(folder) else []:
        (folder / name).unlink()


def _opened(path: str, folder: str) -> Opened:
    """What tasks draw from, kept in the process from one to the next."""
    if folder not in _open:
        _open[folder] = (Run(path), *read_learnt(Path(folder) / LEARNT))
        while len(_open) > MOST_OPEN:
            _open.pop(next(iter(_open)))
    return _open[folder]


def write_part(
    path: str, folder: str, settings: SynthesizeTable, rows: int, parts: int, number: int
) -> tuple[str, list[np.ndarray]]:
    """Draw and write a part; the name of its file, and its counts over some sets.

    `settings`: handed over, since a process that keeps a run open may know what was asked for before.
    """
    run, learnt, cells, total = _opened(path, folder)
    release, part = run.manifest["release"], Part(rows, parts, number)
    groups = draw(learnt, part, release)
    drawn = spread(learnt.wanted, cells, groups, Chance(release, "cells", rows, parts, number))
    weights = raked(learnt.wanted, groups, part, total) if settings.weights else None
    if run.domain.rules:
        possible = Possible(run.domain.rules, learnt.wanted.layout.names, cells.ones)
        drawn = possible.mended(drawn, Chance(release, "possible", rows, parts, number))
    table = _decoded(run, learnt, drawn, weights, Chance(release, "values", rows, parts, number))
    name = f"part-{number:05d}.{settings.format}"
    _write(run.path / "synthetic" / name, table)
    return name, counted(drawn, _sizes(learnt, cells), weights)


def _decoded(run: Run, learnt: Learnt, cells: np.ndarray, weights: np.ndarray | None, chance: Chance) -> Any:
    """The columns in the input's order, of its types."""
    import pyarrow as pa

    names, types = learnt.wanted.layout.names, run.manifest.get("columns") or {}
    ordered = [name for name in types if name in names] + [name for name in names if name not in types]
    values = {
        name: column(run.domain[name], cells[:, names.index(name)], chance, type_of(types.get(name, "")))
        for name in ordered
    }
    if weights is not None:
        values["weight" if "weight" not in values else "weight_"] = pa.array(weights)
    return table_of(values)


def _write(path: Path, table: Any) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    with writing(path, durable=False) as file:
        if path.suffix == ".csv":
            pyarrow.csv.write_csv(table, file)
        else:
            pyarrow.parquet.write_table(table, file, store_schema=False)
