"""Cost of the draws of a run, recomputed from its files, compared with the charge on its ledger.

The module reads measurements, plan, job and ledger with separate code and imports nothing from the packages that wrote
them. The cost is Σ over the measurement files of (m Δ k)² / (v − 8), with Δ² the largest squared column norm of the
matrix in the plan. Draws of an adaptive run have the Δ² of the residual or strategy in their record, and its selections
are added.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sqlite3
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.audit.evidence.sensitivities import digest_of_tree, of_tree
from dpscale.base.numerics import Integers


@dataclass(frozen=True)
class Audit:
    """Costs drawn and paid, as squared Gaussian-DP mu or pure epsilon, and other faults."""

    drawn: Fraction
    paid: Fraction
    faults: tuple[str, ...]

    @property
    def sound(self) -> bool:
        return not self.faults and self.drawn <= self.paid


def audit_run(run_dir: str | Path, ledger: str | Path) -> Audit:
    """Audit one run directory against a ledger."""
    run = Path(run_dir)
    manifest, job = json.loads((run / "manifest.json").read_text()), tomllib.loads((run / "job.toml").read_text())
    bound = job["data"].get("max_rows_per_unit") or 1
    if "blocks" not in json.loads((run / "plan" / "plan.json").read_text()):
        return _audit_rounds(run, manifest["release"], bound, ledger)
    sensitivities, paid = _sensitivities(run), _paid(ledger)
    drawn, faults = Fraction(0), []
    for name, record in _drawn(run):
        key = (tuple(record["attributes"]), record["strategy"])
        if record["release"] != manifest["release"] or record["release"] not in paid:
            faults.append(f"{name}: a draw under a release that was not charged")
        elif key not in sensitivities:
            faults.append(f"{name}: a draw that is not in the plan")
        else:
            drawn += _cost(record, sensitivities[key], bound)
    return Audit(drawn, paid.get(manifest["release"], Fraction(0)), tuple(faults))


def _audit_rounds(run: Path, release: str, bound: int, ledger: str | Path) -> Audit:
    """Audit an adaptive run: selections by the rounds' files, which the ledger records; draws by their own records.

    The first round, of 1-way marginals, follows from the plan and has no file. No draw may occur twice.
    """
    paid, decided = _paid(ledger), _decided(ledger, release)
    rounds = [json.loads(path.read_text()) for path in sorted((run / "measurements").glob("round-*.json"))]
    drawn = sum((Fraction(one["beta"]) * len(one["chosen"]) for one in rounds), Fraction(0))
    ordered = {(one["round"], rank, tuple(names)) for one in rounds for rank, names, *_ in one["orders"]}
    drawn_already: set[tuple[int, int, tuple[str, ...]]] = set()
    stored = {_digest(one) for one in rounds}
    faults = [f"round {number}: differs from the ledger" for number, _ in sorted(stored - decided)]
    faults += [f"round {number}: on the ledger but not in the run" for number, _ in sorted(decided - stored) if number]
    for name, record in _drawn(run):
        if record["release"] != release or release not in paid:
            faults.append(f"{name}: a draw under a release that was not charged")
        decision = (record["round"], record["rank"], tuple(record["residual"]))
        if decision in drawn_already or not (decision in ordered or _is_one_way(record)):
            faults.append(f"{name}: a draw without a decision, or drawn twice")
        drawn_already.add(decision)
        squared = _reach(record)
        if squared is None:
            faults.append(f"{name}: a draw with an unknown strategy")
        drawn += _cost(record, (squared or 1, 0), bound)
    return Audit(drawn, paid.get(release, Fraction(0)), tuple(faults))


def _reach(record: dict[str, Any]) -> int | None:
    """Return the largest squared column norm of the strategy of a round's draw; None for an unknown strategy."""
    if "strategy" in record:
        own = reaches(record["groups"][0][0]) if record["whole"] and len(record["residual"]) == 1 else {}
        return own.get(record["strategy"])
    counts = [len(starts) for _, *starts in record["groups"]]
    return 1 if record["whole"] else math.prod(count * (count - 1) for count in counts)


def _is_one_way(record: dict[str, Any]) -> bool:
    return bool(record["round"] == 0 and record["whole"] and len(record["residual"]) == 1)


def _cost(record: dict[str, Any], reach: tuple[int, int], rows: int) -> Fraction:
    """Return the cost of a draw from its record.

    `reach` is the largest squared L2 norm and the largest L1 norm of a column.
    """
    if "laplace" in record:
        return Fraction(record["multiplier"] * reach[1] * rows, int(record["laplace"]))
    return Fraction(int(record["multiplier"]) ** 2 * reach[0] * rows**2, int(record["variance"]) - 8)


def _drawn(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of all draws, each with the name of its file."""
    for path in sorted((run / "measurements").glob("*.parquet")):
        yield from ((path.name, record) for record in records_of(path))


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of the draws of a file: its metadata combined with the label of the rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        head = json.loads(file.schema_arrow.metadata[b"dpscale"])
        for number in range(file.num_row_groups):
            labels = file.read_row_group(number, columns=["label"]).column("label")
            yield from (head | json.loads(label) for label in labels.unique().to_pylist())


def _paid(ledger: str | Path) -> dict[str, Fraction]:
    rows = _query_ledger(ledger, "SELECT release, cost FROM releases")
    costs = {release: json.loads(cost) for release, cost in rows}
    kinds = ("gaussian", "pure")
    return {release: next((Fraction(cost[kind]) for kind in kinds if Fraction(cost[kind])), Fraction(0))
            for release, cost in costs.items()}  # fmt: skip


def _decided(ledger: str | Path, release: str) -> set[tuple[int, str]]:
    """Return the rounds recorded on the ledger for a release, each with the digest of its decision."""
    rows = _query_ledger(ledger, "SELECT release, round, digest FROM rounds")
    return {(number, digest) for name, number, digest in rows if name == release}


def _query_ledger(ledger: str | Path, query: str) -> list[tuple[Any, ...]]:
    """Return rows of a ledger: a SQLite file, or the schema dpscale_ledger of a PostgreSQL database."""
    if "://" not in str(ledger):
        with closing(sqlite3.connect(ledger)) as db:
            return db.execute(query).fetchall()
    import psycopg

    with psycopg.connect(str(ledger), options="-c search_path=dpscale_ledger") as server:
        return server.execute(query.encode()).fetchall()


def _digest(entry: dict[str, Any]) -> tuple[int, str]:
    content = {key: value for key, value in entry.items() if key != "seal"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return entry["round"], hashlib.sha256(text.encode()).hexdigest()


def _sensitivities(run: Path) -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    """Return the largest column norms (squared L2, L1) of every block of a plan, by attributes and strategy digest."""
    plan = json.loads((run / "plan" / "plan.json").read_text())
    attributes = tomllib.loads((run / "domain.toml").read_text())["attributes"]
    names = [level for name, one in attributes.items()
             for level in (name, *(one["levels"] if one["kind"] == "hierarchy" else ()))]  # fmt: skip
    with np.load(run / "plan" / "factors.npz") as matrices:
        factors = {key: (value, _tree(key, value, matrices) if value["kind"] == "tree" else matrices.get(key))
                   for key, value in plan["factors"].items()}  # fmt: skip
    strategies = [_strategy([factors[key] for key in keys]) for keys in plan["strategies"]]
    with np.load(run / "plan" / "blocks.npz") as blocks:
        sets, which = np.split(blocks["members"], blocks["ends"][:-1]), blocks["strategy"]
    sensitivities = {}
    for places, number in zip(sets, which, strict=True):
        digest, reach = strategies[number]
        sensitivities[tuple(names[place] for place in places), digest] = reach
    return sensitivities


def _packed(values: Integers) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, "<i8").tobytes())).decode()


def _tree(key: str, described: Mapping[str, Any], arrays: Mapping[str, Integers]) -> dict[str, Any]:
    """Return a strategy on a tree in the form of the evidence, whose norms are those of plain integers."""
    depth, spread = described["depth"], f"{key}.spread"
    return {"kind": "tree", "shape": described["shape"], "known": described.get("known", -1),
            "parents": [_packed(arrays[f"{described['tree']}.{level}"]) for level in range(depth)],
            "multipliers": [_packed(arrays[f"{key}.{level}"]) for level in range(depth + 1)],
            "spread": _packed(arrays[spread]) if described["centred"] else None}  # fmt: skip


def _strategy(factors: list[tuple[dict[str, Any], Any]]) -> tuple[str, tuple[int, int]]:
    """Return the digest of a product of factors, and its largest column norms."""
    digest, squared, absolute = hashlib.sha256(), 1, 1
    for described, matrix in factors:
        if described["kind"] == "tree":
            digest.update(digest_of_tree(matrix).encode())
            norms = of_tree(matrix)
            squared, absolute = squared * norms[0], absolute * norms[1]
            continue
        content = b"" if matrix is None else np.ascontiguousarray(matrix).tobytes()
        factor_digest = hashlib.sha256(f"{described['kind']}{tuple(described['shape'])}".encode() + content)
        digest.update(factor_digest.hexdigest().encode())
        norms = _largest_column(described, matrix)
        squared, absolute = squared * norms[0], absolute * norms[1]
    return digest.hexdigest(), (squared, absolute)


def _largest_column(described: dict[str, Any], matrix: Integers | None) -> tuple[int, int]:
    if matrix is None:
        cells = int(np.prod(described["shape"]))
        matrix = np.eye(cells, dtype=np.int64)
        if described["kind"] == "center":
            matrix = matrix * cells - 1
    columns = [[int(value) for value in column] for column in matrix.T]
    return max(sum(v**2 for v in column) for column in columns), max(sum(map(abs, column)) for column in columns)


SCALE, MOST = 1 << 12, 512


@lru_cache(maxsize=64)
def reaches(size: int) -> dict[str, int]:
    """Return the largest squared column norm of each strategy on `size` cells, by the digest in records."""
    if not 0 < size <= MOST:
        return {}
    matrices = [_matrix(size, ends) for ends in (1, 2)]
    return {_matrix_digest(one): max(sum(row[cell] ** 2 for row in one) for cell in range(size)) for one in matrices}


def _matrix(size: int, ends: int) -> list[list[int]]:
    down = [math.floor(Fraction(SCALE * math.comb(2 * k, k), 4**k) + Fraction(1, 2)) for k in range(size)]
    triangle = [[down[i - j] if i >= j else 0 for j in range(size)] for i in range(size)]
    rows = triangle + [row[::-1] for row in triangle[::-1]] * (ends - 1)
    squares = [sum(row[cell] ** 2 for row in rows) for cell in range(size)]
    alone = [math.isqrt(max(squares) - square) for square in squares]
    return rows + [[value if i == cell else 0 for i in range(size)] for cell, value in enumerate(alone) if value]


def _matrix_digest(matrix: list[list[int]]) -> str:
    content = f"full({len(matrix[0])},)".encode() + np.array(matrix, dtype=np.int64).tobytes()
    return hashlib.sha256(hashlib.sha256(content).hexdigest().encode()).hexdigest()
