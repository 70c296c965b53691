"""The tables and figures of the five papers: ours next to the printed figures, one command per paper.

    python benchmarks/papers.py hdmm | query-smasher | aim-grem | eigen-design | relational | all
        --quick     smaller domains and fewer seeds: under two minutes for all papers on two idle cores
        --nightly   of aim-grem only AIM+PGM in all cells, three seeds, which takes hours (aim_grem.py --limit)
        --only      some tables and figures of a paper, such as "table 3"
        --save      save the figures in results/; python benchmarks/tables.py puts them into docs/benchmarks.md

`COVERAGE` lists every table and figure with the module that prints it, and what differs from the paper or cannot be
reproduced. Printed figures that are pictures only are those of the text around them. Strategies are real-valued, before
rounding to a lattice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import Any
from unittest import mock

import base

from dpscale.base.numerics import one_thread


@dataclass(frozen=True)
class Item:
    """One table or figure.

    Attributes
    ----------
    paper, what : str
        Such as "hdmm" and "table 3".
    module : str
        Module of this folder that prints it; empty if it cannot be reproduced.
    note : str
        What differs from the paper, or the reason why it cannot be reproduced.
    """

    paper: str
    what: str
    module: str = ""
    note: str = ""


HDMM, QUERY, EIGEN, RELATIONAL = "hdmm", "query_smasher", "eigen_design", "relational"
SAVED = {name: f"{name}_paper" for name in (HDMM, QUERY, RELATIONAL)}  # beside the figures of the scripts
WIDE_ROWS = "4,096 and 8,192 cells: range and prefix alone, since dense searches of the others take hours"
COVERAGE = (
    Item("hdmm", "table 3", HDMM),
    Item("hdmm", "table 4", HDMM, f"{WIDE_ROWS}; LRM: its code is not ours, its printed figures are shown"),
    Item("hdmm", "table 5", HDMM, f"{WIDE_ROWS}; COA: its code is not ours, its printed figures are shown"),
    Item("hdmm", "table 6", HDMM, "SF1: the paper does not list its predicates; 4,151 queries of the published tables"),
    Item("hdmm", "table 7", HDMM, "SF1: as in table 6"),
    Item("hdmm", "figure 2", HDMM, "a picture; its text has the times of 1,024 cells for 100 iterations"),
    Item(
        "hdmm",
        "figure 3",
        HDMM,
        "a picture without printed figures: our times; (c) up to 32⁵ cells, of the sets of the workload",
    ),
    Item(
        "query-smasher",
        "table 2",
        QUERY,
        "RP+: ours has the best named base of every attribute, the paper's a solved one",
    ),
    Item("query-smasher", "table 3", QUERY),
    Item(
        "query-smasher",
        "table 4",
        QUERY,
        "NI: not implemented by the competitor; HDMM: ours takes at most 15 attributes",
    ),
    Item("query-smasher", "table 5", QUERY),
    Item("query-smasher", "table 6", QUERY, "planning time; the paper's times are from a 128-core server"),
    Item("query-smasher", "table 7", QUERY, "planning time; the paper's times are from a 128-core server"),
    Item("query-smasher", "table 8", QUERY, "the paper's random row for 30 cells did not finish"),
    Item("aim-grem", "table 2", "aim_grem", "tables with 15, 43 and 66 attributes are made of others (shapes)"),
    *(Item("aim-grem", f"figure {number}", "aim_grem") for number in range(3, 12)),
    Item("aim-grem", "AIM+PGM in all cells", "aim_grem", "three seeds, with --nightly"),
    Item("eigen-design", "example 4", EIGEN, "the printed figures use log₂(2/δ)/ε²"),
    Item("eigen-design", "figure 3", EIGEN, "a picture; the factors are those of the text, the domains are our choice"),
    Item("eigen-design", "table 2", EIGEN, "the domains of the range marginals are not printed: ours are shown"),
    Item(
        "eigen-design",
        "figure 4",
        EIGEN,
        "marginals of 32 × 16 × 16 cells: no shape is printed; eigenvectors of equal eigenvalues are random",
    ),
    Item("eigen-design", "figure 5", EIGEN),
    Item("eigen-design", "relative error on data", EIGEN, "Adult; the census extract is not public"),
    Item("relational", "figure 3", RELATIONAL, "a picture; MovieLens 100K for 1M, generated persons for IPUMS"),
    *(
        Item("relational", f"figure {number}", RELATIONAL, "a picture without printed figures; MovieLens 100K")
        for number in range(4, 8)
    ),
)
PAPERS = tuple(dict.fromkeys(item.paper for item in COVERAGE))


def run_main(module: str, quick: bool, nightly: bool, save: bool) -> None:
    """Call `main` of a module that prints a whole paper."""
    options = ["--quick"] * quick + ["--nightly"] * nightly + ["--save"] * save
    with mock.patch.object(sys, "argv", [f"{module}.py", *options]):
        import_module(module).main()


def run_items(module: Any, items: Sequence[Item], quick: bool) -> dict[str, float]:
    """Print tables and figures one after the other and return their figures."""
    found: dict[str, float] = {}
    for item in items:
        start = time.perf_counter()
        print(f"\n## {item.paper}, {item.what}" + (f" ({item.note})" if item.note else ""), flush=True)
        try:
            found.update(module.print_item(item.what, quick))
        except FileNotFoundError as error:
            print(f"not reproduced: {error.filename} is not there; real data does not travel with dpscale")
        print(f"({time.perf_counter() - start:.0f} s)", flush=True)
    return found


def run_paper(paper: str, quick: bool, nightly: bool, only: Sequence[str], save: bool) -> None:
    """Print the tables and figures of a paper, and save the figures of its modules."""
    items = [item for item in COVERAGE if item.paper == paper and (not only or item.what in only)]
    for name, group in groupby(items, lambda item: item.module):
        own = list(group)
        if name and find_spec(name) and hasattr(import_module(name), "print_item"):
            found = run_items(import_module(name), own, quick)
            if save:
                base.save(SAVED.get(name, name), found)
            continue
        print(f"\n## {paper}, {', '.join(item.what for item in own)}", flush=True)
        if not name:
            print("\n".join(f"{item.what} is not reproduced: {item.note}" for item in own))
        elif not find_spec(name):
            print(f"not reproduced: benchmarks/{name}.py is not in this version")
        else:
            run_main(name, quick, nightly, save)


def run_all(quick: bool, save: bool) -> None:
    """Run the papers in processes of their own, two at a time, and print their outputs in order."""
    options = ["--quick"] * quick + ["--save"] * save
    commands = [[sys.executable, __file__, paper, *options] for paper in PAPERS]
    failed = []
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda command: subprocess.run(command, stdout=subprocess.PIPE, text=True), commands)
        for paper, run in zip(PAPERS, runs, strict=True):
            print(run.stdout, end="", flush=True)
            failed += [paper] * (run.returncode != 0)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def main() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("paper", choices=[*PAPERS, "all"])
    parser.add_argument("--quick", action="store_true", help="smaller domains and fewer seeds")
    parser.add_argument("--nightly", action="store_true", help="of aim-grem only AIM+PGM in all cells")
    parser.add_argument("--only", nargs="*", default=[], metavar="ITEM", help='such as "table 3"')
    parser.add_argument("--save", action="store_true", help="save the figures in results/")
    given = parser.parse_args()
    if (given.save and given.quick) or (given.only and (given.save or given.paper == "all")):
        parser.error("--save needs all figures of a paper, and --only names those of one: remove an option")
    if given.nightly and (given.paper != "aim-grem" or given.quick):
        parser.error("--nightly is of aim-grem, without --quick")
    os.environ["DPSCALE_STORE"] = "off"  # nothing solved before
    if given.paper == "all":
        run_all(given.quick, given.save)
        return
    with one_thread():
        run_paper(given.paper, given.quick, given.nightly, given.only, given.save)


if __name__ == "__main__":
    main()
