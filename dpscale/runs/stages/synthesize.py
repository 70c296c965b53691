"""The synthesize stage: synthetic rows, which cost nothing and can be drawn repeatedly.

It reads no record and no count. The driver fits the sampler once. Then each part of the table is a separate task. Its
bytes depend on the sampler, the release id and the number of the part.
"""

from __future__ import annotations

import json
import warnings
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrays import Integers32
from dpscale.engine import Engine
from dpscale.job.sections import SynthesizeTable
from dpscale.privacy.streams import Chance
from dpscale.runs.estimates import chosen_way, estimates_of, low_order_of, model_folder, opened_way
from dpscale.runs.run import Run
from dpscale.runs.stages.preflight import check_rows
from dpscale.storage.files import listed, present, write_whole, writing
from dpscale.synthesis.decode import column, table_of, type_of
from dpscale.synthesis.draw import PairwiseSampler, RowPart, RowSampler, attribute_sizes, split_rows
from dpscale.synthesis.one_way_rounding import RuleRepair
from dpscale.synthesis.quality import count_sampled_sets, distance_warning, distances_by_degree


class RowsWarning(UserWarning):
    """Synthetic rows are farther from their own estimates than `synthesize.quality` allows."""


INDEX = "_rows.json"  # readers of a folder pass over names with a line before them
Counts = list[np.ndarray]


def perform(run: Run, engine: Engine) -> None:
    """Fit the sampler, draw every part and write the description."""
    settings, folder, columns, memory = _settings(run), model_folder(run), len(run.domain), run.job.engine.bytes
    check_rows(settings, settings.rows, columns, memory)
    name, tried = chosen_way(run, settings, engine.each("model"))
    _, way = opened_way(str(run.path), str(folder), name)
    rows = settings.rows or max(1, round(way.total))
    check_rows(settings, rows, columns, memory)
    _clear(run.path / "synthetic")
    parts = split_rows(rows, settings.parts_of(rows))
    written = engine.map(write_part, [(str(run.path), str(folder), name, settings, part) for part in parts], "rows")
    told = {"rows": rows, "parts": settings.parts_of(rows), "weights": settings.weights, "method": name, "tried": tried}
    _tell(run, way, told, written)


def _tell(run: Run, way: RowSampler, told: dict[str, Any], written: list[tuple[list[str], Counts]]) -> None:
    """Write the description of the rows and their distance from the estimates."""
    counts = [np.sum(own, axis=0) for own in zip(*(counts for _, counts in written), strict=True)]
    content = told | {
        "files": [file for files, _ in written for file in files],
        "total": way.total,
        "pairs": {"held": way.matched_pairs, "of": comb(len(way.names), 2)},
        "apart": distances_by_degree(counts, way.names, attribute_sizes(way), estimates_of(run).marginal),
    }
    if warning := _distance(run, way, counts, told["rows"]):
        content["warning"] = warning
        warnings.warn(warning, RowsWarning, stacklevel=2)
    write_whole(run.path / "synthetic" / INDEX, json.dumps(content, indent=1).encode())


def _distance(run: Run, way: RowSampler, counts: Counts, rows: int) -> str:
    """Return a warning if rows are too far from the estimates from which they are drawn; "" if they are not.

    Least-squares estimates may be negative and inconsistent. Rows are then drawn from low-order tables.
    """
    estimates = estimates_of(run)
    model = low_order_of(run) if estimates.extrapolates(()) is None else estimates
    return distance_warning(counts, way.names, attribute_sizes(way), model.marginal, rows)


def _settings(run: Run) -> SynthesizeTable:
    return run.synthesis or SynthesizeTable()


def _clear(folder: Path) -> None:
    """Remove files of earlier rows."""
    for name in listed(folder) if present(folder) else []:
        (folder / name).unlink()


def write_part(path: str, folder: str, name: str, settings: SynthesizeTable, part: RowPart) -> tuple[list[str], Counts]:
    """Draw a part and write its files; return their names and the part's counts over some sets.

    `settings` is an argument because a process with an open run may have older settings.
    """
    run, way = opened_way(path, folder, name)
    rows = drawn_rows(run, way, part)
    weights = way.weights(rows, part) if settings.weights and isinstance(way, PairwiseSampler) else None
    files, begun = [], 0
    for file in part.each:
        inside = slice(begun, begun + file.count)
        chance = Chance(run.manifest["release"], "values", file.rows, file.parts, file.number)
        table = _decoded(run, way, rows[inside], None if weights is None else weights[inside], chance)
        files.append(f"part-{file.number:05d}.{settings.format}")
        _write(run.path / "synthetic" / files[-1], table)
        begun += file.count
    return files, count_sampled_sets(rows, attribute_sizes(way), weights)


def drawn_rows(run: Run, way: RowSampler, part: RowPart) -> Integers32:
    """Return the cells of a part's rows; rows that the domain's rules exclude are repaired."""
    rows = way.rows(part, run.manifest["release"])
    if not run.domain.rules:
        return rows
    chance = Chance(run.manifest["release"], "possible", *part.key)
    return RuleRepair(run.domain.rules, way.names, way.ones).repair(rows, chance)


def _decoded(run: Run, way: RowSampler, cells: Integers32, weights: np.ndarray | None, chance: Chance) -> Any:
    """Return the columns in the order and with the types of the input."""
    import pyarrow as pa

    names, types = way.names, run.manifest.get("columns") or {}
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
