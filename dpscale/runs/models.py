"""What maximum entropy answers from, kept in a run directory so that tasks need not make it again.

model/<release>/model.npz  replica-00.npz …  errors.json  agreed.npz      the last three where the job asks for them
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.names import AttributeSet as Names
from dpscale.runs.run import RunDirectory
from dpscale.storage.files import reading, write_whole, writing
from dpscale.reconstruct.maxent import LowOrder
from dpscale.reconstruct.simulated import Simulated
from dpscale.residual.groups import Groups

Array = NDArray[np.float64]
MODEL, ERRORS, AGREED = "model.npz", "errors.json", "agreed.npz"


def model_folder(run: RunDirectory) -> Path:
    """Named by the release and its data: what another release left in the directory is not read as this one's."""
    manifest = run.manifest
    name = json.dumps([manifest["release"], manifest["snapshot"]])
    return run.path / "model" / hashlib.sha256(name.encode()).hexdigest()[:16]


def write_model(path: Path, model: LowOrder) -> None:
    """One file, exact."""
    groups = {name: [own.size, *own.starts] for name, own in model.groups.items()}
    tables = [list(names) for names in model.tables]
    index = {"groups": groups, "ones": list(model.ones), "tables": tables, "total": model.total}
    arrays = {f"one{i}": own for i, own in enumerate(model.ones.values())}
    _write(path, index, arrays | {f"table{i}": own for i, own in enumerate(model.tables.values())})


def read_model(path: Path) -> LowOrder:
    """The model of a file, byte by byte."""
    with reading(path) as file, np.load(file, allow_pickle=False) as found:
        index = json.loads(str(found["index"]))
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        ones = {name: found[f"one{i}"] for i, name in enumerate(index["ones"])}
        tables = {tuple(names): found[f"table{i}"] for i, names in enumerate(index["tables"])}
    return LowOrder(ones, groups, tables, index["total"])


def write_errors(folder: Path, told: Simulated) -> None:
    """The replicas, then what belongs to them."""
    for number, replica in enumerate(told.replicas):
        write_model(folder / f"replica-{number:02d}.npz", replica)
    content = {"replicas": len(told.replicas), "measured": [list(names) for names in told.measured],
               "widening": told.widening, "dispersion": told.dispersion}  # fmt: skip
    write_whole(folder / ERRORS, json.dumps(content).encode())


def read_errors(folder: Path, model: LowOrder) -> Simulated:
    content = json.loads((folder / ERRORS).read_text())
    replicas = tuple(read_model(folder / f"replica-{number:02d}.npz") for number in range(content["replicas"]))
    measured = tuple(tuple(names) for names in content["measured"])
    return Simulated(model, replicas, measured, content["widening"], content["dispersion"])


def write_agreed(path: Path, tables: Mapping[Names, Array]) -> None:
    """Targets that agree on what they have in common."""
    _write(path, {"sets": [list(names) for names in tables]}, {f"t{i}": own for i, own in enumerate(tables.values())})


def read_agreed(path: Path) -> dict[Names, Array]:
    with reading(path) as file, np.load(file, allow_pickle=False) as found:
        return {tuple(names): found[f"t{i}"] for i, names in enumerate(json.loads(str(found["index"]))["sets"])}


def _write(path: Path, index: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Whole or not at all; not flushed, since it can be made again for free."""
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)
