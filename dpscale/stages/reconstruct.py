"""The reconstruct stage: the workload's answers with standard errors and 95 % intervals, as Parquet.

One file for each part of the workload and attribute set, written by independent tasks that read measurements only.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.domain import Attribute
from dpscale.engine import Engine
from dpscale.measure.store import LARGE_PAGES
from dpscale.names import AttributeSet
from dpscale.privacy.budget import GAUSSIAN, LAPLACE
from dpscale.reconstruct.contract import Estimates
from dpscale.runs.estimates import estimates_of, keep_model
from dpscale.runs.run import Run
from dpscale.storage.files import write_whole, writing
from dpscale.workload import ExplicitPart, Part, ProductPart

HALF_WIDTH_95 = {GAUSSIAN: 1.959963984540054, LAPLACE: math.log(20) / math.sqrt(2)}  # in standard errors
TASKS_PER_WORKER = 8
MOST_OPEN = 4
Opened = tuple[Run, Estimates]
_open: dict[tuple[str, str], Opened] = {}
RESERVED = ("estimate", "std_error", "low", "high")


def perform(run: Run, engine: Engine) -> None:
    """Write the answers of the whole workload, and their index."""
    engine.check_sight(run.path)
    keep_model(run, engine.each("model"))
    items, known = [], _known(run)
    _kept(str(run.path), known, run)  # threads of this process need not open it again
    for number, part in enumerate(run.workload.parts):
        size = max(1, len(part.sets) // (TASKS_PER_WORKER * engine.workers))
        items += [(str(run.path), known, number, start, start + size) for start in range(0, len(part.sets), size)]
    rows = [row for group in engine.map(write_answers, items, "answers") for row in group]
    write_whole(run.path / "answers" / "index.json", json.dumps(rows, indent=1).encode())


def _known(run: Run) -> str:
    """What a directory's estimates follow from: another run may come to stand where one stood."""
    manifest = run.manifest
    return json.dumps([manifest["release"], manifest["job_sha256"], manifest["stages"]["measure"].get("sha256")])


def _opened(path: str, known: str) -> Opened:
    """A run that tasks answer from, kept in the process from one to the next."""
    return _open.get((path, known)) or _kept(path, known, Run(path))


def _kept(path: str, known: str, run: Run) -> Opened:
    _open[path, known] = opened = run, estimates_of(run)
    while len(_open) > MOST_OPEN:
        _open.pop(next(iter(_open)))
    return opened


def write_answers(path: str, known: str, number: int, start: int, end: int) -> list[dict[str, Any]]:
    """Answer some attribute sets of one part: an index row each. `known`: as of `_known`."""
    run, estimates = _opened(path, known)
    part = estimates.workload.parts[number]
    return [_answer_set(run, estimates, number, part, i) for i in range(start, min(end, len(part.sets)))]


def _answer_set(run: Run, estimates: Estimates, number: int, part: Part, index: int) -> dict[str, Any]:
    attributes = part.sets[index]
    row = {"part": number, "family": part.name, "attributes": list(attributes), "queries": part.count(attributes)}
    if part.count(attributes) > run.job.output.max_rows or part.weights[index] == 0:
        return row | {"file": None, "rms_error": None}
    answers, errors = estimates.part_answers(part, attributes)
    name = f"{number:02d}-{part.name}/{index:05d}-{safe_name(attributes)}.parquet"
    half = HALF_WIDTH_95[estimates.noise] * errors
    _write(run.path / "answers" / name, _columns(run, part, attributes), answers, errors, half)
    known = errors[np.isfinite(errors)]
    return row | {"file": name, "rms_error": math.sqrt(float(np.mean(known**2))) if known.size else None}


def safe_name(attributes: AttributeSet) -> str:
    """Attribute names as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", "+".join(attributes))[:120] or "total"


def _columns(run: Run, part: Part, attributes: AttributeSet) -> dict[str, Any]:
    """What identifies each query: a column for every attribute and parameter, row-major."""
    import pyarrow as pa

    if isinstance(part, ExplicitPart) and part.family is not None:
        part = part.family
    if not isinstance(part, ProductPart):
        return {"query": pa.array(np.arange(part.count(attributes)))}
    pairs = zip(part.families(attributes), run.domain.shape(attributes), strict=True)
    axes = [family.bounds(n) for family, n in pairs]
    counts = [len(next(iter(bounds.values()))) for bounds in axes]
    columns = {}
    for axis, (attribute, bounds) in enumerate(zip(attributes, axes, strict=True)):
        before, after = math.prod(counts[:axis]), math.prod(counts[axis + 1 :])
        for key, cells in bounds.items():
            spread = np.tile(np.repeat(cells.astype(np.int32), after), before)
            columns[_column_name(attribute, key, len(bounds))] = _labelled(run.domain[attribute], spread)
    return columns


def _column_name(attribute: str, key: str, parameters: int) -> str:
    name = attribute if parameters == 1 else f"{attribute}_{key}"
    return f"{name}_" if name in RESERVED else name


def _labelled(attribute: Attribute, cells: np.ndarray) -> Any:
    """A column of labels: numbers where all are, else a dictionary of texts; null for the cell of nulls."""
    import pyarrow as pa

    labels = [label for label in attribute.labels if label is not None]
    if len({type(label) for label in labels}) > 1:
        labels = [str(label) for label in labels]
    null = cells == attribute.null_cell if attribute.null_cell >= 0 else None
    if isinstance(labels[0], int):
        values = np.asarray([*labels, 0], dtype=np.int64)  # one more, for the masked cell of nulls
        return pa.array(values[cells], mask=null)
    return pa.DictionaryArray.from_arrays(pa.array(cells, mask=null), pa.array(labels))


def _write(path: Path, columns: dict[str, Any], answers: np.ndarray, errors: np.ndarray, widths: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    estimate, error, half = (values.reshape(-1) for values in (answers, errors, widths))
    figures = {"estimate": estimate, "std_error": error, "low": estimate - half, "high": estimate + half}
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    fields += [pa.field(name, pa.float64(), nullable=False) for name in figures]
    table = pa.table([*columns.values(), *map(pa.array, figures.values())], schema=pa.schema(fields))
    coded: Any = [*columns, "std_error", *(("low", "high") if np.isnan(half).all() else ())]
    # not flushed to disk one by one: answers can be made again for free, and the manifest holds their hash
    with writing(path, durable=False) as file:
        pq.write_table(table, file, use_dictionary=coded, write_statistics=False, **LARGE_PAGES)
