"""Scale of links: processor time, bytes and peak memory of a whole run, by the number of links.

Two databases, written part by part: parents with children (one-to-many, ten children per parent on average, at most 20
count), and a table of pairs of public rows. Each run is a process of its own; CPU seconds are those of the process and
of its workers, and the peak is the largest sum of their resident memory. The figures at the margin are the differences
between two sizes divided by that of their links. `PYTHONPATH` of another commit measures that commit.

    python benchmarks/link_scale.py [--links 1000000,3000000] [--shape children|pairs] [--scheduler threads]
    python benchmarks/link_scale.py --large
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PARENT_SIZES, CHILD_SIZES = (6, 2, 4), (5, 3, 8)
CHILDREN, MOST, PART = 10, 20, 1_000_000
SAMPLE = 0.1  # seconds between samples of the memory


def draw_cells(rng: np.random.Generator, rows: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.minimum(rng.geometric(2 / max(size, 3), rows) - 1, size - 1).astype(np.int8) for size in sizes]


def write_table(folder: Path, name: str, rows: int, sizes: tuple[int, ...], seed: int, key: str) -> None:
    """Write the rows of a table in parts, with the numbers of the rows as keys, and its domain file."""
    (folder / name).mkdir()
    for part, first in enumerate(range(0, rows, PART)):
        rng, count = np.random.default_rng((seed, part)), min(PART, rows - first)
        columns = {key: np.arange(first, first + count), **_named(draw_cells(rng, count, sizes))}
        pq.write_table(pa.table(columns), folder / name / f"{part:04d}.parquet")
    lines = [f'[attributes.a{i}]\nkind = "coded"\nsize = {size}\n' for i, size in enumerate(sizes)]
    (folder / f"{name}.toml").write_text("".join(lines))


def _named(cells: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"a{i}": own for i, own in enumerate(cells)}


def write_children(folder: Path, links: int) -> dict[str, Any]:
    """Write parents and their children in an order that is not that of the parents; return the job."""
    parents = max(links // CHILDREN, 1)
    write_table(folder, "parents", parents, PARENT_SIZES, 0, "id")
    (folder / "children").mkdir()
    for part, first in enumerate(range(0, links, PART)):
        rng, count = np.random.default_rng((1, part)), min(PART, links - first)
        parent = (rng.beta(3, 4, count) * parents).astype(np.int64) * 7919 % parents  # parents with few and with many
        cells = draw_cells(rng, count, CHILD_SIZES)
        own = rng.random(count) < 0.3
        cells[0] = np.where(own, parent % CHILD_SIZES[0], cells[0]).astype(np.int8)
        pq.write_table(pa.table({"parent": parent, **_named(cells)}), folder / "children" / f"{part:04d}.parquet")
    lines = [f'[attributes.a{i}]\nkind = "coded"\nsize = {size}\n' for i, size in enumerate(CHILD_SIZES)]
    (folder / "children.toml").write_text("".join(lines))
    link = {"kind": "one-to-many", "parent": "parents", "child": "children", "child_key": "parent", "max_degree": MOST}
    return {"tables": {"parents": _section(folder, "parents", key="id"), "children": _section(folder, "children")},
            "link": [link]}  # fmt: skip


def write_pairs(folder: Path, links: int) -> dict[str, Any]:
    """Write two public tables and a table of pairs between them; return the job."""
    parents, films = max(links // CHILDREN, 1), max(links // 100, 1)
    write_table(folder, "parents", parents, PARENT_SIZES, 0, "id")
    write_table(folder, "films", films, CHILD_SIZES, 2, "film")
    (folder / "seen").mkdir()
    for part, first in enumerate(range(0, links, PART)):
        rng, count = np.random.default_rng((3, part)), min(PART, links - first)
        pairs = {"id": rng.integers(0, parents, count), "film": (rng.beta(1, 3, count) * films).astype(np.int64)}
        pq.write_table(pa.table(pairs), folder / "seen" / f"{part:04d}.parquet")
    link = {"kind": "many-to-many", "name": "seen", "parent": "parents", "child": "films", "child_key": "film",
            "via": f"{folder}/seen/*.parquet", "max_degree": MOST}  # fmt: skip
    sections = {"parents": _section(folder, "parents", key="id", public=True),
                "films": _section(folder, "films", key="film", public=True)}  # fmt: skip
    return {"tables": sections, "link": [link]}


def _section(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    return {"path": f"{folder}/{name}/*.parquet", "domain": f"{folder}/{name}.toml", **more}


SHAPES = {"children": write_children, "pairs": write_pairs}


def run_once(job: str, run_dir: str) -> None:
    """Run the job of a file in this process."""
    import dpscale as dp

    dp.run(json.loads(Path(job).read_text()), run_dir)


def measure(shape: str, links: int, scheduler: str, memory: str) -> tuple[float, float, float]:
    """Return seconds, CPU seconds, and bytes at the peak."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = SHAPES[shape](folder, links)
        job["privacy"] = {"epsilon": 1.0, "delta": 1e-9, "dataset": "links", "ledger": str(folder / "ledger.sqlite")}
        job["engine"] = {"scheduler": scheduler, "memory": memory}
        (folder / "job.json").write_text(json.dumps(job))
        began = time.perf_counter()
        child = subprocess.Popen([sys.executable, __file__, "--run", str(folder / "job.json"), str(folder / "run")])
        peaks: dict[str, int] = {}
        watcher = threading.Thread(target=_watch, args=(child, folder / "run/manifest.json", peaks))
        watcher.start()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        watcher.join()
        if child.returncode:
            raise SystemExit(f"the run of {links} links failed")
        stages = json.loads((folder / "run/manifest.json").read_text())["stages"]
        print("; ".join(f"{one} {_seconds(own):.0f} s {peaks.get(one, 0) / 1e9:.2f} GB" for one, own in stages.items()),
              file=sys.stderr)  # fmt: skip
        return time.perf_counter() - began, used.ru_utime + used.ru_stime, float(max(peaks.values()))


def _seconds(stage: dict[str, Any]) -> float:
    from datetime import datetime

    return (datetime.fromisoformat(stage["end"]) - datetime.fromisoformat(stage["start"])).total_seconds()


def _watch(child: subprocess.Popen[bytes], manifest: Path, peaks: dict[str, int]) -> None:
    """Record the largest resident memory of the run in each stage."""
    while child.returncode is None:
        stage = "start"
        with suppress(OSError, ValueError):
            stage = list(json.loads(manifest.read_text())["stages"])[-1]
        peaks[stage] = max(peaks.get(stage, 0), sum(map(_resident, _family(child.pid))))
        time.sleep(SAMPLE)


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found, waiting = [], [pid]
    while waiting:
        found.append(one := waiting.pop())
        for listed in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                waiting.extend(map(int, listed.read_text().split()))
            except OSError:
                continue
    return found


def _resident(pid: int) -> int:
    """Return the proportional resident bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="1000000,3000000", help="numbers of links, in ascending order")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="children")
    parser.add_argument("--scheduler", default="threads")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--large", action="store_true", help="also 10 million and 100 million links")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        return run_once(*given.run)
    numbers = [int(one) for one in given.links.split(",")] + [10**7, 10**8] * given.large
    before = None
    for links in numbers:
        seconds, cpu, peak = measure(given.shape, links, given.scheduler, given.memory)
        line = f"{links:>12,} {given.shape}: {seconds:7.1f} s, CPU {cpu:7.1f} s, peak {peak / 1e9:5.2f} GB"
        if before is not None:
            more = links - before[0]
            line += f"; at the margin {(cpu - before[1]) / more * 1e6:5.2f} µs"
            line += f" and {(peak - before[2]) / more:5.0f} B per link"
        print(line, flush=True)
        before = links, cpu, peak
    return None


if __name__ == "__main__":
    main()
