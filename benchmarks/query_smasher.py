"""QuerySmasher's tables: RMSE of the paper, of query-smasher (q-s) and of weighted-residuals (w-r), and planning times.

Each row is planned by both in new processes, without stored solutions. The paper's times are from a 128-core server. A
paper RMSE above that of query-smasher means that the paper's solver had not converged. `least`: a lower bound on the
RMSE of all matrix mechanisms.

    python benchmarks/query_smasher.py [--tables 2 3 4 5 6 7 8] [--most SIZE] [--save]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import combinations

import base
import numpy as np
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

import dpscale as dp
from dpscale import mechanisms
from dpscale.optimize.opt_explicit import optimise_explicit
from dpscale.workload import PREFIX

SCHEMAS = {
    "Adult": ([100, 100, 100, 99, 85], [42, 16, 15, 9, 7, 6, 5, 2, 2]),
    "CPS": ([50, 100], [7, 4, 2]),
    "Loans": ([101, 101, 101, 101], [51, 36, 15, 8, 6, 5, 4, 3]),
}
TABLE_2 = {"Adult": (5.047, 17.632, 47.055, 47.853), "CPS": (3.135, 6.194, 7.903, 8.140),
           "Loans": (4.670, 14.822, 36.095, 36.410)}  # fmt: skip
TABLE_3 = {"CPS": (5.935, 5.900), "Adult": (16.435, 16.254), "Loans": (14.305, 14.330)}
FAMILIES = ("marginal", "prefix", "range", "circular", "affine", "abs", "random")
TABLE_4 = {
    10: (23.48, 33.70, 41.08, 39.77, 28.25, 35.85, 104.43),
    20: (25.70, 49.51, 63.32, 63.01, 35.71, 39.49, 233.69),
    30: (26.46, 60.81, 78.79, 79.14, 44.36, 48.14, 362.01),
    40: (26.84, 68.78, 90.91, 91.72, 69.62, 49.83, 490.65),
    50: (27.07, 75.26, 100.97, 102.13, 79.33, 52.80, 616.54),
}
TABLE_5 = {
    10: (20.41, 51.63, 93.50, 138.38, 187.24),
    20: (34.60, 95.63, 167.16, 249.29, 340.55),
    30: (44.46, 126.19, 221.80, 331.86, 454.37),
}
TABLE_6 = {10: (2.8, 4.4, 2.6, 7.2, 9.7), 20: (2.7, 4.3, 6.4, 8.2, 10.2), 30: (3.6, 7.1, 9.9, 12.8, 16.6),
           40: (4.9, 9.3, 14.9, 20.6, 37.7)}  # fmt: skip
TABLE_7 = {10: (4.6, 29.4, 29.4, 51.3, 104.2), 20: (20.9, 51.3, 167.1, 411.4, 837.5),
           30: (25.4, 169.3, 592.5, 1383.9, 2974.1), 40: (68.6, 491.3, 1647.7, 3694.7)}  # fmt: skip
TABLE_8 = {
    10: (39.22, 56.59, 68.82, 66.70, 47.33, 51.94, 174.49),
    20: (42.90, 84.18, 105.93, 105.53, 61.68, 66.89, 386.32),
    30: (44.16, 101.95, 131.76, 132.48, 102.25, 106.11, None),
    40: (44.80, 115.07, 152.00, 153.50, 139.22, 183.22, 817.66),
}
DEGREES = (10, 20, 30, 40, 50)
MECHANISMS = ("query-smasher", "weighted-residuals")
KEPT = ("mixed 40 40", "mixed 40 10", "mixed 30 40", "cube 40 40 prefix", "cube 40 40 affine", "hybrid Adult 0")
NOTICED = 1e-6  # relatively, of an error
Row = tuple[int, dict, float | None, float | None]  # table, what to plan, the paper's RMSE, its seconds


def rows() -> Iterator[Row]:
    """Yield every row of the tables."""
    for name, figures in TABLE_2.items():
        for degree, paper in zip((1, 2, 3, 0), figures, strict=True):
            yield 2, {"kind": "hybrid", "schema": name, "degree": degree}, paper, None
    for name, figures in TABLE_3.items():
        for family, paper in zip(("affine", "abs"), figures, strict=True):
            yield 3, {"kind": "pairs", "schema": name, "family": family}, paper, None
    for table, content in ((4, TABLE_4), (8, TABLE_8)):
        for n, figures in content.items():
            for family, paper in zip(FAMILIES, figures, strict=True):
                yield table, {"kind": "cube", "n": n, "d": 40, "family": family, "weighted": table == 8}, paper, None
    for n, figures in TABLE_5.items():
        for d, paper in zip(DEGREES, figures, strict=True):
            yield 5, {"kind": "mixed", "n": n, "d": d}, paper, TABLE_7[n][DEGREES.index(d)]
    for n, seconds in TABLE_6.items():
        for d, paper_time in zip(DEGREES, seconds, strict=True):
            yield 6, {"kind": "cube", "n": n, "d": d, "family": "prefix", "weighted": False}, None, paper_time
    for d, paper_time in zip(DEGREES, TABLE_7[40], strict=False):
        yield 7, {"kind": "mixed", "n": 40, "d": d}, None, paper_time
    yield 6, {"kind": "cube", "n": 100, "d": 100, "family": "prefix", "weighted": False}, None, None


def make_workload(what: dict):  # type: ignore[no-untyped-def]
    """Return the workload of a row."""
    import dpscale as dp

    if what["kind"] in ("hybrid", "pairs"):
        numeric, categorical = SCHEMAS[what["schema"]]
        domain = dp.Domain(
            {f"n{i}": n for i, n in enumerate(numeric)} | {f"c{i}": n for i, n in enumerate(categorical)}
        )
        names = [name for name in domain.names if name.startswith("n")]
        queries = dp.Workload(domain)
        if what["kind"] == "hybrid":
            for degree in (what["degree"],) if what["degree"] else (1, 2, 3):
                queries.add("hybrid", degree=degree, numeric=names)
            return queries
        queries.add("hybrid", degree=1, numeric=names)
        for pair in combinations(domain.names, 2):
            a, b = domain.shape(pair)
            large = (a - 1) * (b - 1) > 5000
            queries.add(
                *(["hybrid"] if large else [what["family"]]), attributes=[pair], **({"numeric": names} if large else {})
            )
        return queries
    queries = dp.Workload(dp.Domain({f"x{i}": what["n"] for i in range(what["d"])}))
    if what["kind"] == "mixed":
        return queries.add("range", degree=1).add("affine", degree=2).add("prefix", degree=3)
    one_way = "prefix" if what["family"] in ("affine", "abs") else what["family"]
    weights: list = [1.0, 1.0]
    if what["weighted"]:
        drawn = np.random.RandomState(42).randint(1, 6, what["d"] + what["d"] * (what["d"] - 1) // 2)
        weights = [drawn[: what["d"]].astype(float).tolist(), drawn[what["d"] :].astype(float).tolist()]
    return queries.add(one_way, degree=1, weight=weights[0]).add(what["family"], degree=2, weight=weights[1])


def plan_row(what: dict, mechanism: str) -> dict[str, float]:
    """Plan a row in this process."""
    import dpscale as dp
    from dpscale import mechanisms

    queries, plan = make_workload(what), dp.plan
    mechanisms.mechanism(mechanism)  # imported before the clock starts
    start = time.perf_counter()
    made = plan(queries, mechanism)
    wall = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = {"rmse": made.rmse(), "gap": made.optimality_gap, "wall": wall, "peak": peak, "queries": made.query_count}
    return found | {"least": made.bound_all or 0.0}


def plan_in_processes(what: dict, limit: float) -> list[dict[str, float]]:
    """Plan a row with each mechanism in a separate process; nan if it takes longer than the limit."""
    found: list[dict[str, float]] = []
    for mechanism in MECHANISMS:
        command = [sys.executable, __file__, "--one", json.dumps(what), "--mechanism", mechanism]
        nothing_solved = os.environ | {"DPSCALE_STORE": "off"}
        try:
            ran = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=nothing_solved, timeout=limit
            )
            found.append(json.loads(ran.stdout))
        except subprocess.TimeoutExpired:
            found.append(dict.fromkeys(("rmse", "gap", "peak", "least", "queries"), math.nan) | {"wall": limit})
    return found


HEADS = (("paper", 8), ("q-s", 9), ("paper/", 7), ("w-r", 9), ("paper/", 7), ("w-r/q-s", 8), ("w-r/least", 9),
         ("gap q-s", 8), ("gap w-r", 8), ("s q-s", 7), ("s w-r", 7), ("times", 6), ("GiB q-s", 7), ("GiB w-r", 7),
         ("paper s", 8), ("/ q-s", 6), ("/ w-r", 6))  # fmt: skip


def row_cells(row: Row, smashed: dict[str, float], weighted: dict[str, float]) -> list[str]:
    """Return the cells under `HEADS`."""
    _, _, paper, paper_time = row
    both = (smashed, weighted)
    errors = [f"{one['rmse']:.4f}" for one in both]
    against = [f"{paper / one['rmse']:.4f}" if paper else "" for one in both]
    texts = [f"{weighted['rmse'] / smashed['rmse']:.5f}",
            f"{weighted['rmse'] / weighted['least']:.4f}" if weighted["least"] else ""]  # fmt: skip
    texts += [f"{one['gap']:.1e}" for one in both] + [f"{one['wall']:.2f}" for one in both]
    texts += [f"{weighted['wall'] / smashed['wall']:.1f}"] + [f"{one['peak']:.2f}" for one in both]
    texts += [f"{paper_time:.1f}", *(f"{paper_time / one['wall']:.0f}x" for one in both)] if paper_time else []
    return [f"{paper:.3f}" if paper else "", errors[0], against[0], errors[1], against[1], *texts]


def row_name(what: dict) -> str:
    return " ".join(str(value) for key, value in what.items() if key != "weighted")


def main() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--tables", type=int, nargs="*", default=[2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--most", type=int, default=100, help="leave out cubes of larger sizes")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that one plan may take")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--mechanism", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(plan_row(json.loads(given.one), given.mechanism)))
        return
    print(f"table {'row':<20} {'queries':>14} " + " ".join(f"{head:>{width}}" for head, width in HEADS))
    found = []
    for row in rows():
        if row[0] in given.tables and row[1].get("n", 0) <= given.most:
            found.append((row, *plan_in_processes(row[1], given.limit)))
            shown = zip(row_cells(*found[-1]), HEADS, strict=False)
            print(f"{row[0]:5} {row_name(row[1]):<20} {found[-1][1]['queries']:>14,} "
                  + " ".join(f"{cell:>{width}}" for cell, (_, width) in shown), flush=True)  # fmt: skip
    if given.save:
        base.save("query_smasher", published_figures(found))


def published_figures(found: list[tuple[Row, dict[str, float], dict[str, float]]]) -> dict[str, float]:
    """Return the figures of the documentation: some rows, and the summary of all rows."""
    figures: dict[str, float] = {}
    for (table, what, paper, paper_time), *both in found:
        for mechanism, one in zip(MECHANISMS, both, strict=True):
            if row_name(what) in KEPT and table != 8 and _is_planned(one):
                figures |= {f"{row_name(what)}, time, {mechanism}": paper_time / one["wall"]} if paper_time else {}
                figures |= {f"{row_name(what)}, RMSE, {mechanism}": paper / one["rmse"]} if paper else {}
    return figures | summarise_rows(found)


def summarise_rows(found: list[tuple[Row, dict[str, float], dict[str, float]]]) -> dict[str, float]:
    """Return the summary of the rows that both planned in time: gaps, rows above the paper's digits, and the rest."""
    ended = [row for row in found if _is_planned(row[1]) and _is_planned(row[2])]
    papers = [row for row in ended if row[0][2] or row[0][3]]
    ratios = [weighted["rmse"] / smashed["rmse"] for _, smashed, weighted in ended]
    return {
        "rows": len(ended),
        "rows left out": sum(1 for _ in rows()) - len(ended),  # not selected, or beyond the limit
        "largest gap": max(smashed["gap"] for _, smashed, _ in papers),
        "largest gap, weighted-residuals": max(weighted["gap"] for *_, weighted in papers),
        "rows above the paper": sum(_is_above_paper(row, one) for row, *both in papers for one in both),
        "rows above query-smasher": sum(ratio > 1 + NOTICED for ratio in ratios),
        "least of query-smasher": min(ratios),
        "rows beyond five times": sum(w["wall"] > 5 * s["wall"] for _, s, w in ended),
        "largest planning time": max(w["wall"] / s["wall"] for _, s, w in ended),
        "peak GiB": max(weighted["peak"] for *_, weighted in ended),
    }


def _is_planned(one: dict[str, float]) -> bool:
    return not math.isnan(one["rmse"])


def _is_above_paper(row: Row, one: dict[str, float]) -> bool:
    return bool(row[2]) and round(one["rmse"], 3 if row[0] in (2, 3) else 2) > row[2]  # type: ignore[operator]


LIMIT, QUICK_LIMIT = 40, 4
MOST_HDMM = 15  # attributes
OURS = "weighted-residuals"
Printed = dict[str, float | None]
PaperRow = tuple[dict, Printed]


def columns(values: tuple[float | None, ...]) -> Printed:
    return dict(zip(QUERY_COLUMNS[-len(values) :], values, strict=True))


def paper_rows(what: str) -> Iterator[PaperRow]:
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
    for row, printed in paper_rows(what):
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


def print_base(quick: bool) -> dict[str, float]:
    """Print the printed error of RP+ over ours with one base for all families: the optimum of centred prefix queries.

    The ratio is nearly the same for all families of a size: the paper's base is one for all of them, and not as good.
    """
    found = {}
    for n in (10,) if quick else (10, 20):
        centring = np.eye(n) - 1 / n
        gram = centring @ PREFIX.gram(n) @ centring
        base_rows = optimise_explicit(gram + RIDGE * np.eye(n), "gaussian").matrix
        for family, printed in zip(QUERY_FAMILIES, QUERY_4[n], strict=True):
            if family not in BASED:
                continue
            workload = make_workload({"kind": "cube", "n": n, "d": 40, "family": family, "weighted": False})
            bases = dict.fromkeys(workload.domain.names, base_rows)
            ours = dp.plan(workload, "residual-planner-plus", bases=bases).rmse()
            found[f"table 4, prefix base, {family} {n}"] = printed[0] / ours
            print(f"  RP+ with the optimal base of prefix queries, {family} [{n}]^40: {ours:.2f} (printed "
                  f"{printed[0]:.2f}, {printed[0] / ours:.3f} times)", flush=True)  # fmt: skip
    return found


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


BASED, RIDGE = ("prefix", "range", "affine", "abs"), 1e-9
ITEMS = ("table 2", "table 3", "table 4", "table 5", "table 6", "table 7", "table 8")


def print_item(what: str, quick: bool) -> dict[str, float]:
    """Print a table and return its figures."""
    found = (print_times if what in ("table 6", "table 7") else print_errors)(what, quick)
    return found | (print_base(quick) if what == "table 4" else {})


if __name__ == "__main__":
    main()
