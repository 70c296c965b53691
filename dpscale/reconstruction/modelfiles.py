"""What maximum entropy answers from, as files: exact, whole or not at all, and made again for free."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.domain.impossible import restored
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.simulated import Simulated
from dpscale.storage.files import reading, write_whole, writing
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.groups import Groups

MODEL, ERRORS, AGREED, RESIDUALS = "model.npz", "errors.json", "agreed.npz", "residuals.npz"


def write_model(path: Path, model: LowOrder) -> None:
    """One file, exact: all tables in one flat array, since an array of its own costs more than a table has numbers."""
    groups = {name: [grouping.size, *grouping.starts] for name, grouping in model.groups.items()}
    tables = [list(names) for names in model.tables]
    index = {"groups": groups, "ones": list(model.ones), "tables": tables, "total": model.total,
             "measured": [list(names) for names in model.tables if names in model.measured]}  # fmt: skip
    if model.rules:
        index["rules"] = [rule.to_dict() for rule in model.rules]
    _write(path, index, {"ones": _flat(model.ones.values()), "cells": _flat(model.tables.values())})


def read_model(path: Path) -> LowOrder:
    """The model of a file, byte by byte."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index = json.loads(str(arrays["index"]))
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        sets = [tuple(names) for names in index["tables"]]
        if "cells" in arrays:
            every = _apart(arrays["ones"], [(groups[name].size,) for name in index["ones"]])
            cells = _apart(arrays["cells"], [tuple(groups[name].count for name in names) for names in sets])
        else:  # of older versions: an array a table
            every = [arrays[f"one{i}"] for i in range(len(index["ones"]))]
            cells = [arrays[f"table{i}"] for i in range(len(sets))]
        ones, tables = dict(zip(index["ones"], every, strict=True)), dict(zip(sets, cells, strict=True))
    measured = index.get("measured", index["tables"])  # older files do not tell
    rules = tuple(restored(told) for told in index.get("rules", ()))
    return LowOrder(ones, groups, tables, index["total"], frozenset(tuple(names) for names in measured), rules)


def _flat(tables: Iterable[Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *(np.asarray(table).reshape(-1) for table in tables)])


def _apart(cells: Floats, shapes: Sequence[tuple[int, ...]]) -> list[Floats]:
    """The tables of a flat array, as views."""
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
    return [cells[first:end].reshape(shape) for shape, (first, end) in zip(shapes, pairwise(ends), strict=True)]


def write_errors(folder: Path, errors: Simulated) -> None:
    """The replicas, then what belongs to them."""
    for number, replica in enumerate(errors.replicas):
        write_model(folder / f"replica-{number:02d}.npz", replica)
    content = {"replicas": len(errors.replicas), "measured": [list(names) for names in errors.known],
               "known": list(errors.known.values()), "widening": errors.widening,
               "dispersion": errors.dispersion}  # fmt: skip
    write_whole(folder / ERRORS, json.dumps(content).encode())


def read_errors(folder: Path, model: LowOrder) -> Simulated:
    content = json.loads((folder / ERRORS).read_text())
    replicas = tuple(read_model(folder / f"replica-{number:02d}.npz") for number in range(content["replicas"]))
    sets = [tuple(names) for names in content["measured"]]
    known = dict(zip(sets, content.get("known", [1.0] * len(sets)), strict=True))  # of older runs: all
    return Simulated(model, replicas, known, content["widening"], content["dispersion"])


def write_agreed(path: Path, tables: Mapping[AttributeSet, Floats]) -> None:
    """Targets that agree on what they have in common."""
    _write(
        path, {"sets": [list(names) for names in tables]}, {f"t{i}": table for i, table in enumerate(tables.values())}
    )


def read_agreed(path: Path) -> dict[AttributeSet, Floats]:
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        return {tuple(names): arrays[f"t{i}"] for i, names in enumerate(json.loads(str(arrays["index"]))["sets"])}


def write_residuals(path: Path, residuals: Residuals) -> None:
    """Values over all cells; how precise they are is not kept."""
    index = {"sizes": dict(residuals.sizes), "sets": [list(names) for names in residuals.values]}
    _write(path, index, {f"r{i}": values for i, values in enumerate(residuals.values.values())})


def read_residuals(path: Path) -> Residuals:
    with reading(path) as file, np.load(file, allow_pickle=False) as content:
        index = json.loads(str(content["index"]))
        values = {tuple(names): content[f"r{i}"] for i, names in enumerate(index["sets"])}
    return Residuals(index["sizes"], values)


def _write(path: Path, index: dict[str, Any], arrays: dict[str, Floats]) -> None:
    """Whole or not at all; not flushed, since it can be made again for free."""
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)
