"""docs/benchmarks.md, from `results/*.json`: what stands between `<!-- benchmark: NAME -->` and `<!-- end -->`.

    python benchmarks/tables.py            writes docs/benchmarks.md anew
    python benchmarks/tables.py --check    exit code 1 where it would change

A test holds the page to it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from linked_blocks import relational
from results import load
from rounding import fine, ratio, share, significant, table

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BLOCK = re.compile(r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Figures = dict[str, Any]


def main_job(found: Figures) -> str:
    rows = {
        "`numpy.bincount` in a loop, counts in memory": "bincount",
        "dpscale, from plan to measurements on disk": "plan to measurements",
        "`numpy.bincount`, its counts written as Parquet": "bincount written",
        "dpscale, whole job: every cell answered with its error as Parquet, and a report": "whole job",
        "`dask.dataframe` groupby-count, counts in memory": "dask groupby",
    }
    head = ("`benchmarks/main_job.py`: Adult, all 364 3-way marginals (20 million cells)", "ratio")
    return table(head, *([label, significant(found[key], 3)] for label, key in rows.items()))


def counting(found: Figures) -> str:
    own = (
        f"dpscale ({significant(found['ns'], 2)} ns a row, marginal and core; "
        f"one increment in memory would be {significant(found['increment ns'], 2)})"
    )
    what = "10 million rows × 20 attributes of mixed sizes, all 1,140 3-way marginals, from Parquet"
    head = (f"`benchmarks/counting.py`: {what}", "ratio")
    return table(head, [own, "1"], ["`numpy.bincount`", ratio(found["bincount"])], ["DuckDB", ratio(found["duckdb"])])


def noise(found: Figures) -> str:
    rows = {
        "dpscale, σ = 2³⁰ (the usual case: a fine lattice)": significant(found["sigma 2^30"], 2),
        "dpscale, σ = 100": significant(found["sigma 100"], 2),
        "numpy's float normal (not exact)": significant(found["numpy"], 2),
        "OpenDP's discrete Gaussian, on a vector": significant(found["opendp"], 1),
    }
    return table(
        ("`benchmarks/noise.py`: exact discrete Gaussian noise, draws a second and core", "ratio"), *rows.items()
    )


def query_smasher(found: Figures) -> str:
    rows = {
        "[40]⁴⁰, 1-way range + 2-way affine + 3-way prefix: 632 million queries, 10,701 subworkloads": "mixed 40 40",
        "[40]¹⁰, the same families": "mixed 40 10",
        "[30]⁴⁰, the same families": "mixed 30 40",
        "[40]⁴⁰, 1-way + 2-way prefix": "cube 40 40 prefix",
        "[40]⁴⁰, 1-way prefix + 2-way affine": "cube 40 40 affine",
        "Adult, hybrid, up to 3-way": "hybrid Adult 0",
    }
    head = (
        "`benchmarks/query_smasher.py`: QuerySmasher's paper (128-core server) over ours",
        "planning time: `query-smasher`", "`weighted-residuals`", "RMSE: `query-smasher`", "`weighted-residuals`",
    )  # fmt: skip
    columns = [f"{what}, {name}" for what in ("time", "RMSE") for name in SPLITS]
    shown = ([label, *(times(found, f"{key}, {column}") for column in columns)] for label, key in rows.items())
    return f"{table(head, *shown)}\n\n{overall(found)}"


SPLITS = ("query-smasher", "weighted-residuals")


def overall(found: Figures) -> str:
    """What holds of all rows."""
    under = "at or under its error to the printed digits" if not found["rows above the paper"] else (
        f"{found['rows above the paper']} of them above its error"
    )  # fmt: skip
    above = found["rows above query-smasher"]
    late = found["rows left out"]
    return (
        f"{found['rows']} rows of that paper's tables: `query-smasher` at a certified gap below {gap(found)}, "
        f"`weighted-residuals` below {gap(found, ', weighted-residuals')} of its own kind, {under}. "
        f"`weighted-residuals` is up to {100 * (1 - found['least of query-smasher']):.1f} % below `query-smasher`"
        f" and above it {f'on {above}' if above else 'nowhere'}; it plans in more than five times its time on "
        f"{found['rows beyond five times']}, at most {ratio(found['largest planning time'])} times, "
        f"with at most {significant(found['peak GiB'], 2)} GiB."
        + (f" ({late} further rows: not planned, or not within the limit.)" if late else "")
    )


def times(found: Figures, key: str) -> str:
    if key not in found:
        return ""
    return ratio(found[key]) if ", time" in key else fine(found[key])


def gap(found: Figures, which: str = "") -> str:
    """The next number of one digit: 4·10⁻⁷ for 3.2e-07."""
    value = found[f"largest gap{which}"]
    exponent = math.floor(math.log10(value))
    digit = math.ceil(round(value / 10**exponent, 6))
    return f"{digit}·10⁻{str(-exponent).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def hdmm(found: Figures) -> str:
    rows = {
        "Adult, 0- to 3-way marginals": "Adult W1",
        "Adult, 2-way, prefix on five attributes": "Adult W2",
        "Loans, marginals of at most 5,000 cells": "Loans W1",
        "the same sets, prefix on four attributes": "Loans W2",
        "CPS, all marginals": "CPS W1",
        "CPS, all sets of three, prefixes on two attributes": "CPS W2",
    }
    head = (
        "`benchmarks/hdmm.py`: expected RMSE, HDMM's paper over ours",
        "Gaussian, ε = 1, δ = 10⁻⁶: `hdmm`", "`query-smasher`", "`weighted-residuals`",
        "Laplace, ε = 1: `hdmm`", "`query-smasher`", "`weighted-residuals`",
    )  # fmt: skip
    columns = [f"{noise}, {name}" for noise in ("gaussian", "laplace") for name in ("hdmm", *SPLITS)]
    shown = ([label, *(times(found, f"{key}, {column}") for column in columns)] for label, key in rows.items())
    blank = "" if all(f"{key}, {column}" in found for key in rows.values() for column in columns) else (
        "\n\n(A blank: the search did not end in the time that the run had.)"
    )  # fmt: skip
    return table(head, *shown) + blank


def rows(found: Figures) -> str:
    asked = [("adult", "0.1"), ("adult", "1"), ("adult", "10"), ("acs", "1"), ("salary", "1"), ("titanic", "1")]
    head = (
        "`benchmarks/rows.py`: all 3-way marginals, mean L1 error / N, δ = 10⁻⁹, 3 seeds",
        "Adult, ε = 0.1",
        "ε = 1",
        "ε = 10",
        "ACS, ε = 1",
        "salary, ε = 1",
        "titanic, ε = 1",
    )
    labels = {
        "synthetic rows, as many as records": "rows",
        "the same, not polished": "unpolished",
        "the estimates that they are drawn from": "estimates",
    }
    lines = [[label, *(fine(found[f"{t}, {e}, {key}"]) for t, e in asked)] for label, key in labels.items()]
    note = (
        f"\n\n(Adult, ε = 1: {found['seconds']:.1f} CPU seconds after the release, "
        f"{found['unpolished seconds']:.1f} not polished. "
        "Elsewhere: AIM by Private-PGM 0.179 in 349 s, "
        "dpsynth's SWIFT 0.180 in 302 s, MST 0.226 in 41 s.)"
    )
    return table(head, *lines) + note


def graphical(found: Figures) -> str:
    head = (
        "`benchmarks/graphical.py`: Adult, ε = 1, as above; the same measurements for `mbi`",
        "estimates", "rows, sampler", "rows, junction tree", "rows by `mbi`", "seconds", "`mbi`'s fit alone",
    )  # fmt: skip
    shown = []
    for name in ("aim-grem", "aim-pgm", "mst"):
        own = {
            key: found.get(f"{name}, {key}") for key in ("estimates", "rows, sampler", "rows, ancestral", "rows, mbi")
        }
        peer = found.get(f"{name}, mbi, fit, s")
        took = [significant(found[f"{name}, seconds"], 2), "" if peer is None else significant(peer, 2)]
        shown.append([f"`{name}`", *("" if value is None else fine(value) for value in own.values()), *took])
    alone = ["independent attributes", "", fine(found["aim-grem, rows, independent"]), "", "", "", ""]
    again = significant(found["mst, mbi, fit again, s"], 2)
    note = f"(`mbi`'s fit compiles its own code; the same tree of `mst` fitted again takes it {again} s.)"
    return f"{table(head, *shown, alone)}\n\n{note}"


def usefulness(found: Figures) -> str:
    """Adult: models trained on rows and on records, and models that tell the one from the other."""
    labels = {
        "predicting income: trained on rows, tested on records kept out of the job": "trained on rows",
        "the same, trained on the job's records": "trained on records",
        "telling rows from records kept out (0.5: it cannot)": "propensity, kept out",
        "telling rows from the job's records": "propensity, the job's",
    }
    what = "gradient boosting on Adult, area under the curve, δ = 10⁻⁹, 3 seeds"
    head = (f"`benchmarks/usefulness.py`: {what}", "ε = 0.1", "ε = 1", "ε = 10")
    lines = ([label, *(fine(found[f"{e}, {key}"]) for e in ("0.1", "1", "10"))] for label, key in labels.items())
    return table(head, *lines)


def adaptive(found: Figures) -> str:
    rows = {
        "`aim-grem`": "ours",
        "product of 1-ways, all budget on them": "product of 1-ways",
        "`residual-planner` with `maxent`": "ResidualPlanner, maxent",
        "AIM+GReM as published": "AIM+GReM as published",
        "`residual-planner`": "ResidualPlanner",
    }
    columns = ("adult, 0.1", "adult, 1", "adult, 10", "acs, 1", "salary, 1", "titanic, 1")
    head = (
        "`benchmarks/adaptive.py`: all 3-way marginals, mean L1 error / N, δ = 10⁻⁹, 3 seeds",
        "Adult, ε = 0.1", "ε = 1", "ε = 10", "ACS, ε = 1", "salary, ε = 1", "titanic, ε = 1",
    )  # fmt: skip
    shown = ([label, *(times(found, f"{key}, {column}") for column in columns)] for label, key in rows.items())
    elsewhere = "(Elsewhere, on Adult: AIM with Private-PGM 0.345 in 133 s at ε = 0.1 and 0.166 in 349 s at ε = 1.)"
    return f"{table(head, *shown)}\n\n{elsewhere}\n\n{every_table(found)}"


def every_table(found: Figures) -> str:
    """`aim-grem` and the product of 1-ways on all tables, with the seconds of a run."""
    epsilons = ("0.1", "1", "10")
    head = ("the same, on every table at hand", *(f"`aim-grem`, ε = {e}" for e in epsilons),
            *(f"product, ε = {e}" for e in epsilons), *(f"seconds, ε = {e}" for e in epsilons))  # fmt: skip
    names = dict.fromkeys(key.split(", ")[1] for key in found if key.startswith("ours, ") and "seconds" not in key)
    lines = ([name, *(times(found, f"{kind}, {name}, {e}") for kind in ("ours", "product of 1-ways", "ours, seconds")
                      for e in epsilons)] for name in names)  # fmt: skip
    return table(head, *lines)


def scaling(found: Figures) -> str:
    rows = {
        "work in registers, bare processes: what the machine gave": "registers",
        "counting by bare processes, sums not brought together": "counting, bare",
        "counting": "counting",
        "planning": "planning",
        f"measuring 10,700 sets ({share(found['measuring, driver'])} of it the driver's)": "measuring",
        f"an adaptive measure stage of {found['rounds, seconds']:.0f} s ({share(found['rounds, driver'])} of it the "
        "driver's)": "rounds",
    }
    head = (
        "`benchmarks/scaling.py`: a Dask cluster of 1 and of 2 worker processes on two cores",
        "seconds on 1 / (2 × seconds on 2)",
    )
    shown = table(head, *([label, f"{found[key]:.2f}"] for label, key in rows.items()))
    lost = found["death, counting seconds again"]
    ended = (
        "no task of a counting pass that had ended" if lost < 0.05 else f"{lost:.1f} s of a counting pass's ended tasks"
    )
    error = found["model's error"]
    side = "low" if error < 0 else "high"
    return f"""{shown}

In the same run the scheduler's overhead was {significant(1e3 * found["overhead, seconds a task"], 2)} ms a task, \
{100 * found["overhead, share"]:.1f} % of measuring 10,700 sets; a death of one of two workers made
{found["death, map seconds again"]:.1f} s of a map's calls go again, and {ended}. \
A list scheduler with the times of one worker tells
the two workers' time {share(abs(error))} too {side}; for the same sets on a table a thousand \
times as long (10⁹ rows) it tells {found["simulated, 10"]:.0f} times the
speed on 10 workers, {found["simulated, 100"]:.0f} on 100 and {found["simulated, 1000"]:.0f} on 1,000, \
where the driver's share and the scheduler hold it."""


def large_job(found: Figures) -> str:
    return f"""\
`benchmarks/large_job.py`: the [40]⁴⁰ job above on a million rows with `memory = "{found["memory"]}"` plans in \
{found["plan, seconds"]:.0f} s, counts and
measures all 10,701 residuals in {found["measure, seconds"]:.0f} s with {found["measure, GiB"]:.2f} GiB at its peak, \
and then answers a random query over three attributes in about
{found["answer, ms"]:.0f} ms (on a day when the host was slow: it varies by two)."""


def many_sets(found: Figures) -> str:
    return f"""\
`benchmarks/many_sets.py`: all pairs of {found["attributes"]:,.0f} attributes of four values, \
{found["rows"]:,.0f} rows, two cores: planned in {found["plan, s"]:.0f} s, counted and
measured in {found["measure, s"]:.0f} s, answered in {found["reconstruct, s"]:.0f} s, \
told in {found["report, s"]:.0f} s: {found["seconds"]:.0f} s in all with {found["peak, GiB"]:.1f} GiB at the peak. \
{found["files"]:.0f} files of
{found["MB"]:.0f} MB are left, a report of {found["report, MB"]:.2f} MB among them; `Release.open` takes \
{found["open, s"]:.2f} s, one marginal {found["marginal, ms"]:.1f} ms."""


def wide(found: Figures) -> str:
    sizes = (512, 1024, 2048, 10_000, 100_000, 1_000_000)
    head = ("`benchmarks/wide.py`: `weighted-residuals` on one attribute: seconds to plan, gap of the squared error",
            *(f"{size:,} cells" for size in sizes))  # fmt: skip

    def cell(family: str, size: int) -> str:
        gap = found[f"{family} {size}, gap"]
        return f"{found[f'{family} {size}, seconds']:.2f} s, {'below 10⁻⁶' if gap < 1e-6 else f'{100 * gap:.1f} %'}"

    return table(
        head, *([family, *(cell(family, size) for size in sizes)] for family in ("marginal", "prefix", "range"))
    )


def growth(found: Figures) -> str:
    what = {
        "rows": "rows: a whole job, all pairs of 10 attributes",
        "attributes": "attributes of four values: planning all pairs",
        "cells": "cells of one attribute: planning a 1-way prefix",
        "sets": "attributes of ten cells: planning 1-way range + 2-way affine + 3-way prefix",
    }
    lines = []
    for kind, label in what.items():
        sizes = sorted(int(key.split(",")[0].split()[1]) for key in found if key.startswith(f"{kind} "))
        told = [f"{size:,}: {significant(found[f'{kind} {size}, CPU seconds'], 2)} s" for size in sizes]
        lines.append([label, ", ".join(told), f"{found[f'{kind}, exponent']:.2f}", f"{found[f'{kind}, GiB']:.2f}"])
    return table(("`benchmarks/growth.py`", "CPU time", "exponent of the last step", "peak GiB"), *lines)


READERS = ("dpscale", "pyarrow, encoded", "pyarrow", "polars", "duckdb")
READ = (
    "numbers, snappy",
    "numbers, zstd",
    "texts, snappy",
    "texts, zstd",
    "numbers, 5 % nulls",
    "small numbers, snappy",
)


def reading(found: Figures) -> str:
    heads = ("dpscale: cells", "pyarrow, then encoded", "pyarrow: values", "Polars: values", "DuckDB: sums")
    what = "Parquet by dictionaries, 20 columns, one core, from the files: ns a row"
    lines = [[kind, *(significant(found[f"{kind}, {one}"], 3) for one in READERS)] for kind in READ]
    small = ["a file of 300 rows, ms", *(f"{found[f'small files, {one}']:.2f}" for one in READERS)]
    return table((f"`benchmarks/reading.py`: {what}", *heads), *lines, small)


def shares(found: Figures) -> str:
    what = {
        "wide": "300 attributes of four values, all pairs; told for 10⁸ rows",
        "triples": "20 attributes of mixed sizes, 3-way; told for 10⁸ rows",
        "adaptive": "`aim-grem`, 20 attributes, 3-way; told for 10⁸ rows",
        "adaptive66": "`aim-grem`, 66 attributes, 2-way; told for 10⁶ rows",
    }
    columns = ("seconds", "driver", "10", "100", "1000")
    heads = ("seconds on one worker, as measured", "of them the driver's", "speed-up told at 10", "at 100", "at 1,000")
    lines = ([label, *(significant(found[f"{name}, {one}"], 2) for one in columns)] for name, label in what.items())
    return table(("`benchmarks/shares.py`: whole jobs, from plan to report", *heads), *lines)


BLOCKS: dict[str, Callable[[Figures], str]] = {
    make.__name__: make
    for make in (main_job, counting, noise, query_smasher, hdmm, adaptive, rows, graphical, usefulness, relational,
                 scaling, shares, large_job, many_sets, wide, growth, reading)
}  # fmt: skip


def filled(text: str) -> str:
    """A text with every block made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]](load(found[2]))}\n{found[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    given, text = parser.parse_args(), PAGE.read_text()
    if filled(text) == text:
        return
    if given.check:
        sys.exit("docs/benchmarks.md is not what benchmarks/tables.py makes of benchmarks/results")
    PAGE.write_text(filled(text))


if __name__ == "__main__":
    main()
