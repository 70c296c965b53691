"""QuerySmasher's Tables 2 to 8 with the paper's competitors: RMSE at privacy cost 1, ours and (the paper's).

All mechanisms plan in this process without stored solutions; a plan may take `LIMIT` CPU seconds, and `-` marks those
that take longer or do not accept the workload. `benchmarks/query_smasher.py` plans every row in a process of its own,
without a limit. `residual-planner-plus` has the best named base of every attribute, the paper's RP+ solves for one.
Tables 6 and 7 compare seconds of planning.

    python benchmarks/papers.py query-smasher [--quick] [--save]
"""

from __future__ import annotations

import gc
import math
import signal
import time
from collections.abc import Iterator

from printed import (
    QUERY_2,
    QUERY_3,
    QUERY_4,
    QUERY_5,
    QUERY_6,
    QUERY_7,
    QUERY_8,
    QUERY_COLUMNS,
    QUERY_DEGREES,
    QUERY_FAMILIES,
)
from query_smasher import make_workload, row_name

import dpscale as dp
from dpscale import mechanisms

LIMIT, QUICK_LIMIT = 40, 4
MOST_HDMM = 15  # attributes
OURS = "weighted-residuals"
Printed = dict[str, float | None]
Row = tuple[dict, Printed]


def columns(values: tuple[float | None, ...]) -> Printed:
    return dict(zip(QUERY_COLUMNS[-len(values) :], values, strict=True))


def rows(what: str) -> Iterator[Row]:
    """Yield the rows of a table of errors: what to plan, and the printed figures by mechanism."""
    if what == "table 2":
        for name, figures in QUERY_2.items():
            for degree, values in zip((1, 2, 3, 0), figures, strict=True):
                yield {"kind": "hybrid", "schema": name, "degree": degree}, columns(values)
    if what == "table 3":
        for name, figures in QUERY_3.items():
            for family, values in zip(("affine", "abs"), figures, strict=True):
                yield {"kind": "pairs", "schema": name, "family": family}, columns(values)
    if what in ("table 4", "table 8"):
        for n, figures in (QUERY_4 if what == "table 4" else QUERY_8).items():
            for family, values in zip(QUERY_FAMILIES, figures, strict=True):
                names = QUERY_COLUMNS if what == "table 4" else ("weighted-fourier", "query-smasher")
                cube = {"kind": "cube", "n": n, "d": 40, "family": family, "weighted": what == "table 8"}
                yield cube, dict(zip(names, values, strict=True))
    if what == "table 5":
        for n, figures in QUERY_5.items():
            for d, values in zip(QUERY_DEGREES, figures, strict=True):
                yield {"kind": "mixed", "n": n, "d": d}, columns(values)


def timed(what: str) -> Iterator[tuple[dict, float]]:
    """Yield the rows of a table of times: what to plan, and the printed seconds."""
    for n, seconds in (QUERY_6 if what == "table 6" else QUERY_7).items():
        for d, paper in zip(QUERY_DEGREES, seconds, strict=False):
            family = {"family": "prefix", "weighted": False} if what == "table 6" else {}
            yield {"kind": "cube" if what == "table 6" else "mixed", "n": n, "d": d, **family}, paper


def _raise_late(*_: object) -> None:
    raise TimeoutError


def plan_within(what: dict, mechanism: str, limit: int) -> tuple[float, float]:
    """Return RMSE and seconds; nan for a workload that the mechanism refuses, or does not plan within the limit."""
    mechanisms.mechanism(mechanism)
    workload = make_workload(what)
    if mechanism == "hdmm" and len(workload.domain.names) > MOST_HDMM:
        return math.nan, 0.0
    gc.collect()
    before, start = signal.signal(signal.SIGPROF, _raise_late), time.perf_counter()
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return dp.plan(workload, mechanism).rmse(), time.perf_counter() - start
    except (dp.DpscaleError, TimeoutError):
        return math.nan, time.perf_counter() - start
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def is_quick(row: dict) -> bool:
    if row["kind"] in ("hybrid", "pairs"):
        return row["schema"] == "CPS"
    return row["n"] == 10 and (row["d"] <= 20 or row.get("family") in ("prefix", "circular"))


def print_errors(what: str, quick: bool) -> dict[str, float]:
    """Print the rows of a table and return the least and the largest ratio of the printed error to ours."""
    names = [*QUERY_COLUMNS, OURS]
    print(f"  {'':<24}" + "".join(f"{name:>24}" for name in names))
    ratios: dict[str, list[float]] = {}
    for row, printed in rows(what):
        if quick and not is_quick(row):
            continue
        cells = []
        for name in names:
            ours, _ = plan_within(row, name, QUICK_LIMIT if quick else LIMIT)
            paper = printed.get("query-smasher" if name == OURS else name)
            text = "-" if math.isnan(ours) else f"{ours:.3f}"
            cells.append(text + ("" if name == OURS else f" ({paper:.3f})" if paper else " (NI)"))
            if paper and not math.isnan(ours):
                ratios.setdefault(name, []).append(paper / ours)
        print(f"  {row_name(row):<24}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    for name, own in ratios.items():
        print(f"  {name}: the paper has {min(own):.3f} to {max(own):.3f} times our error on {len(own)} rows")
    return {f"{what}, {name}, {end}": value for name, own in ratios.items()
            for end, value in (("least", min(own)), ("most", max(own)), ("rows", float(len(own))))}  # fmt: skip


def print_times(what: str, quick: bool) -> dict[str, float]:
    """Print planning times and return the least and the largest ratio of the printed time to ours."""
    ratios: dict[str, list[float]] = {"query-smasher": [], OURS: []}
    for row, paper in timed(what):
        if quick and (row["n"] > 20 or row["d"] > 20):
            continue
        texts = []
        for name, own in ratios.items():
            _, seconds = plan_within(row, name, 600)
            own.append(paper / seconds)
            texts.append(f"{name} {seconds:.2f} s ({paper / seconds:.0f}x)")
        print(f"  {row_name(row):<24}paper {paper:.1f} s, {', '.join(texts)}", flush=True)
    return {f"{what}, {name}, {end}": value for name, own in ratios.items()
            for end, value in (("least", min(own)), ("most", max(own)), ("rows", float(len(own))))}  # fmt: skip


ITEMS = ("table 2", "table 3", "table 4", "table 5", "table 6", "table 7", "table 8")


def print_item(what: str, quick: bool) -> dict[str, float]:
    """Print a table and return its figures."""
    return (print_times if what in ("table 6", "table 7") else print_errors)(what, quick)
