"""The cost of a bound on the rows of a person: assignment of rows to units and truncation, relative to plain counting.

Writes tables of 20 attributes with a person for each row, four rows per person on average and three allowed; then
prints seconds (wall and of all processes) to count pairs and triples, to find the dropped rows, the ratio of both
together to counting without units, and peak memory. On a cluster of processes it also prints the largest message that
the scheduler or client received.

    python benchmarks/units.py [--rows 1e7] [--files 8] [--kind int text] [--memory 4GiB 256MiB] [--cluster 2GiB]
                               [--degrees 2 3] [--save]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import base
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from base import all_seconds

from dpscale import Domain, Table
from dpscale.engine.contribution_bounds import rows_beyond, send_dropped_rows, survey_units
from dpscale.engine.counting import partition_groups, plan_passes, run_pass
from dpscale.engine.schedulers import resolve

SIZES = (2, 3, 4, 5, 5, 6, 8, 8, 10, 10, 10, 12, 16, 16, 20, 20, 24, 30, 40, 50)
DOMAIN = Domain({f"a{i:02d}": size for i, size in enumerate(SIZES)})
BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def write_table(folder: Path, rows: int, files: int, kind: str) -> Path:
    """Write the table unless it exists."""
    place = folder / f"{rows}-{files}-{kind}"
    place.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        if not (path := place / f"{number:04d}.parquet").exists():
            rng, count = np.random.default_rng(number), rows // files
            person: Any = rng.integers(0, rows // 4, count)
            columns = {name: pa.array((rng.random(count) ** 1.5 * DOMAIN[name].size).astype(np.int8))
                       for name in DOMAIN.names}  # fmt: skip
            owner = pa.array(person if kind == "int" else np.char.add("person-", person.astype(str)))
            pq.write_table(pa.table(columns | {"person": owner}), path, row_group_size=1 << 20)
    return place


class Stopwatch:
    """Wall seconds, and CPU seconds of this process and of workers."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def now(self) -> tuple[float, float]:
        times = [all_seconds(), *(self._client.run(all_seconds).values() if self._client else ())]
        return perf_counter(), sum(times)

    @contextmanager
    def timed(self, into: dict[str, tuple[float, float]], name: str) -> Iterator[None]:
        wall, used = self.now()
        yield
        now, after = self.now()
        into[name] = now - wall, after - used


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_units(place: Path, rows: int, memory: int, degrees: list[int], client: Any = None) -> dict[str, float]:
    engine = resolve(client) if client else resolve(scheduler="threads")
    table, clock, found = Table.open(place, DOMAIN).split(), Stopwatch(client), dict[str, tuple[float, float]]()
    groups, names = partition_groups(table.partitions, engine.workers), DOMAIN.names
    for round_ in ("warm", "timed"):
        with clock.timed(found, "units"):
            guess = survey_units(engine, table.partitions, "person")
            dropped = send_dropped_rows(engine, rows_beyond(engine, DOMAIN, groups, "person", 3, guess, memory, names))
        for degree in degrees if round_ == "timed" else degrees[:1]:
            [one] = plan_passes(DOMAIN, list(combinations(names, degree)), 1 << 30, engine.workers)
            for also, given in (("", None), (" without them", dropped)):
                with clock.timed(found, f"{degree}-way{also}"):
                    run_pass(engine, one, groups, names, given)
    text = " | ".join(f"{name} {wall:.2f} s ({used:.2f})" for name, (wall, used) in found.items())
    ratios = ", ".join(f"{degree}-way {ratio(found, degree, 0):.2f} (CPU {ratio(found, degree, 1):.2f})"
                       for degree in degrees)  # fmt: skip
    memory_used = max(client.run(peak_memory).values()) if client else peak_memory()
    print(f"  {text}\n  with units over without: {ratios}; {found['units'][1] / rows * 1e9:.0f} ns a row; "
          f"peak {memory_used:.2f} GiB", flush=True)  # fmt: skip
    return {"ns a row": found["units"][1] / rows * 1e9, "GiB": memory_used,
            **{f"{degree}-way ratio": ratio(found, degree, 1) for degree in degrees}}  # fmt: skip


def measure_separately(place: Path, rows: int, memory: str, degrees: list[int]) -> dict[str, float]:
    """Measure in a new process, so that peak memory is that of this memory setting."""
    given = [str(place), rows, parse_size(memory), degrees]
    figures = base.run_separately(__file__, given)
    ratios = ", ".join(f"{degree}-way {figures[f'{degree}-way ratio']:.2f}" for degree in degrees)
    print(
        f"  {figures['ns a row']:.0f} CPU ns a row, peak {figures['GiB']:.2f} GiB; CPU over no units: {ratios}",
        flush=True,
    )
    return figures


def ratio(found: dict[str, tuple[float, float]], degree: int, which: int) -> float:
    """Return the ratio of counting with units to counting without: wall (0), CPU (1)."""
    own = found[f"{degree}-way without them"][which]
    return (found["units"][which] + own) / found[f"{degree}-way"][which]


@contextmanager
def record_messages() -> Iterator[list[int]]:
    """Record the sizes of all messages that this process receives."""
    from distributed.comm import tcp

    sizes, before = [0], tcp.from_frames

    async def record_size(frames: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(sum(memoryview(frame).nbytes for frame in frames))
        return await before(frames, *arguments, **options)

    tcp.from_frames = record_size
    try:
        yield sizes
    finally:
        tcp.from_frames = before


def run_on_cluster(place: Path, rows: int, memory: int, degrees: list[int], limit: str) -> None:
    from distributed import Client, LocalCluster

    with (LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=limit, dashboard_address=None) as made,
          Client(made) as client, record_messages() as sizes):  # fmt: skip
        before = {worker.pid for worker in made.workers.values()}
        measure_units(place, rows, memory, degrees, client)
        lost = len(before - {worker.pid for worker in made.workers.values()})
    print(f"  largest message {max(sizes) / 1e6:.2f} MB of {len(sizes):,}; workers lost: {lost}", flush=True)


def parse_size(text: str) -> int:
    return int(text[:-3]) * BYTES[text[-3:]]


def main() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--kind", nargs="+", default=["int", "text"])
    parser.add_argument("--memory", nargs="+", default=["4GiB", "256MiB"])
    parser.add_argument("--cluster", default="", help="memory limit of each of two workers; none without")
    parser.add_argument("--degrees", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "dpscale-units"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    if args.one:
        folder, rows, memory, degrees = json.loads(args.one)
        with redirect_stdout(sys.stderr):
            figures = measure_units(Path(folder), rows, memory, degrees)
        print(json.dumps(figures))
        return
    saved: dict[str, float] = {"rows": args.rows}
    for kind in args.kind:
        place = write_table(args.folder, int(args.rows), args.files, kind)
        for memory in args.memory:
            print(f"{int(args.rows):,} rows, {args.files} files, ids: {kind}, memory {memory}")
            if args.cluster:
                run_on_cluster(place, int(args.rows), parse_size(memory), args.degrees, args.cluster)
            else:
                found = measure_separately(place, int(args.rows), memory, args.degrees)
                saved |= {f"{kind}, {memory}, {name}": value for name, value in found.items()}
    if args.save:
        base.save("units", saved)


if __name__ == "__main__":
    main()
