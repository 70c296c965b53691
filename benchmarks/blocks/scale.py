"""Blocks about time, memory and size."""

from __future__ import annotations

from typing import Any

from base import percent, ratio, significant, table

Figures = dict[str, Any]


def databases(found: Figures) -> str:
    """Return a table of the times of counts from databases over those from Parquet."""
    head = [f"`benchmarks/sql.py databases`: wall time over that of Parquet, {found['rows']:,.0f} rows of 7 columns",
            "7 sets of 1 column", "21 of 2", "35 of 3"]  # fmt: skip
    names = dict.fromkeys(key.split()[0] for key in found if key.endswith((" rows", " groups")))
    ways = {"rows": "rows are read", "groups": "the database counts"}
    rows = [[f"{name}: {words}", *(f"{found[f'{name} {degree} {way}']:.1f}" for degree in (1, 2, 3))]
            for name in names for way, words in ways.items()]  # fmt: skip
    return table(head, *rows)


def main_job(found: Figures) -> str:
    rows = {
        "`numpy.bincount` in a loop, counts in memory": "bincount",
        "dpscale, from plan to measurements on disk": "plan to measurements",
        "`numpy.bincount`, with its counts written as Parquet": "bincount written",
        "dpscale, whole job: every cell with its error as Parquet, and a report": "whole job",
        "`dask.dataframe` groupby-count, counts in memory": "dask groupby",
    }
    head = ("`benchmarks/main_job.py`: Adult, all 364 3-way marginals (20 million cells)", "ratio")
    return table(head, *([label, significant(found[key], 3)] for label, key in rows.items()))


def counting(found: Figures) -> str:
    own = (
        f"dpscale ({significant(found['ns'], 2)} ns a row, marginal and core; "
        f"one increment in memory takes {significant(found['increment ns'], 2)})"
    )
    what = (
        "10 million rows × 20 attributes of mixed sizes, all 1,140 3-way marginals, dpscale from Parquet "
        "(the others count a part of the rows or sets, scaled)"
    )
    head = (f"`benchmarks/counting.py marginals`: {what}", "ratio")
    others = {
        "a loop of three lines compiled by Numba, in memory": "loop",
        "`numpy.bincount` in chunks of rows, in memory": "chunks",
        "`numpy.bincount`, in memory": "bincount",
        "DuckDB, a query for each set": "duckdb",
        "DuckDB, grouping sets": "grouping_sets",
        "pyarrow `group_by`": "pyarrow",
        "Polars": "polars",
        "`dask.dataframe`": "dask_groupby",
    }
    return table(head, [own, "1"], *([label, ratio(found[key])] for label, key in others.items()))


STAYS = {
    "llvmlite": "numba's compiler",
    "pyarrow": "reads and writes Parquet, CSV, Arrow and JSON; hashes, joins and sorts columns",
    "scipy": "transforms, sparse and symmetric solvers, quantiles",
    "numpy": "all counts and values",
    "pandas": "tables of the Python interface; imported by the first call that returns one",
    "numba": "loops over records, cells and random words",
    "dask": "schedulers of threads and processes",
    "cryptography": "keyed streams of noise (AES), sealed scratch files, signatures",
    "distributed": "clusters; without it, tasks on one machine only",
    "pydantic_core": "checks of job and domain files",
}


def install(found: Figures) -> str:
    labels = dict.fromkeys(key.split(",")[0] for key in found if key.endswith("distributions"))
    columns = ("distributions", "MB of download", "MB on disk")
    head = ("`benchmarks/commands.py install`: `pip install .` and its extras, on Linux", *columns)
    names = {one: "no extra" if one == "alone" else f"`{one}`" for one in labels}
    rows = [[name, *(f"{found[f'{one}, {key}']:.0f}" for key in columns)] for one, name in names.items()]
    sizes = {name: found[f"MB of {name}"] for name in STAYS}
    large = [[f"`{name}`", f"{size:.0f}", STAYS[name]] for name, size in sorted(sizes.items(), key=lambda one: -one[1])]
    return f"{table(head, *rows)}\n\n{table(('largest distributions', 'MB on disk', 'use'), *large)}"


def noise(found: Figures) -> str:
    rows = {
        "dpscale, σ = 2³⁰ (the usual case: a fine lattice)": significant(found["sigma 2^30"], 2),
        "dpscale, σ = 100": significant(found["sigma 100"], 2),
        "numpy's float normal (not exact)": significant(found["numpy"], 2),
        "OpenDP's discrete Gaussian, on a vector": significant(found["opendp"], 1),
    }
    return table(
        ("`benchmarks/noise.py`: exact discrete Gaussian noise, samples per second and core", "ratio"), *rows.items()
    )


def scaling(found: Figures) -> str:
    rows = {
        "work in registers, plain processes: the limit of the machine": "registers",
        "counting by plain processes, without merging the sums": "counting, bare",
        "counting": "counting",
        "planning": "planning",
        f"measuring 10,700 sets ({percent(found['measuring, driver'])} of it on the driver)": "measuring",
        f"an adaptive measure stage of {found['rounds, seconds']:.0f} s ({percent(found['rounds, driver'])} of it on "
        "the driver)": "rounds",
    }
    head = (
        "`benchmarks/scaling.py workers`: a Dask cluster of 1 and of 2 worker processes on two cores",
        "seconds on 1 / (2 × seconds on 2)",
    )
    shown = table(head, *([label, f"{found[key]:.2f}"] for label, key in rows.items()))
    lost = found["death, counting seconds again"]
    ended = (
        "no finished task of a counting pass"
        if lost < 0.05
        else f"{lost:.1f} s of the finished tasks of a counting pass"
    )
    error = found["model's error"]
    side = "low" if error < 0 else "high"
    return f"""{shown}

In the same run the scheduler's overhead was {significant(1e3 * found["overhead, seconds a task"], 2)} ms a task, \
{100 * found["overhead, share"]:.1f} % of measuring 10,700 sets; after the death of one of two workers,
{found["death, map seconds again"]:.1f} s of a map's calls and {ended} ran again. \
A list scheduler with the times of one worker predicts
the time of two workers {percent(abs(error))} too {side}; for the same sets on a table a thousand \
times as long (10⁹ rows) it predicts {found["simulated, 2"]:.1f} times the speed \
on 2 workers, {found["simulated, 10"]:.0f}
on 10, {found["simulated, 100"]:.0f} on 100 and {found["simulated, 1000"]:.0f} on 1,000, \
limited by the driver's share and the scheduler."""


def shares(found: Figures) -> str:
    what = {
        "wide": "300 attributes of four values, all pairs",
        "triples": "20 attributes of mixed sizes, 3-way",
        "adaptive": "`aim-grem`, 20 attributes, 3-way",
        "before, adaptive": "the same with the package of commit 2741c547",
        "adaptive66": "`aim-grem`, 66 attributes, 2-way",
    }
    heads = ("s on one worker, as measured", "of them driver", "on two: measured", "predicted",
             *(f"{rows} rows: {n} workers" for rows in ("10⁸", "10⁹", "10¹⁰") for n in ("100", "1,000")))  # fmt: skip
    lines = []
    for name, label in what.items():
        measured = [significant(found[f"{name}, {one}"], 2) for one in ("seconds", "driver", "on 2", "predicted on 2")]
        predicted = [f"{significant(found[f'{name}, {rows}, {n}, seconds'], 2)} s, "
                     f"{significant(found[f'{name}, {rows}, {n}, times'], 2)} ×"
                     for rows in ("1e+08", "1e+09", "1e+10") for n in ("100", "1000")]  # fmt: skip
        lines.append([label, *measured, *predicted])
    body = table(
        ("`benchmarks/scaling.py shares`: whole jobs, from plan to report, and the model's prediction", *heads), *lines
    )
    return f"""{body}

× is the speed-up over one worker. The model uses the engine's graphs, call by call, with the calls of a round in \
sequence. Of the {significant(found["task, ms"], 2)} ms of an empty task,
{significant(found["scheduler, ms"], 2)} are CPU time of the scheduler, which handles tasks in sequence; the slowest \
of 64 equal tasks took {ratio(found["slowest"])} of their mean.
The two measured workers share two cores with driver and scheduler."""


def many_rows(found: Figures) -> str:
    return f"""\
`benchmarks/large.py many_rows`: {found["rows"]:,.0f} synthetic rows of {found["attributes"]:.0f} attributes \
on a cluster of two workers in {found["seconds"]:.0f} s: \
{significant(1e6 * found["CPU seconds"] / found["rows"], 2)} CPU µs a row,
{found["files"]:,.0f} files of {found["GiB"]:.1f} GiB in all; peak {found["worker, GiB"]:.2f} GiB a worker, \
{found["driver, GiB"]:.2f} GiB the driver."""


def units(found: Figures) -> str:
    lines = []
    for kind, label in (("int", "integer ids"), ("text", "text ids")):
        for memory in ("4GiB", "256MiB"):
            own = {
                name: found[f"{kind}, {memory}, {name}"] for name in ("ns a row", "2-way ratio", "3-way ratio", "GiB")
            }
            lines.append([f"{label}, `memory = \"{memory}\"`", f"{own['ns a row']:.0f}", ratio(own["2-way ratio"]),
                          ratio(own["3-way ratio"]), f"{own['GiB']:.2f} GiB"])  # fmt: skip
    title = f"`benchmarks/units.py`: {found['rows']:,.0f} rows, at most three rows of a person"
    return table((title, "CPU ns a row to bound them", "CPU of counting all pairs with the bound, of that without",
                  "of counting all triples", "peak memory"), *lines)  # fmt: skip


def cluster_cost(found: Figures) -> str:
    what = {
        "threads": "threads, files",
        "cluster": "cluster of two workers, files",
        "data in S3": "threads, data in S3",
        "run directory in S3": "threads, run directory in S3",
    }
    lines = []
    for name, label in what.items():
        cells = [label]
        for start, kind in (("", "CPU"), ("before, ", "CPU"), ("", "wall"), ("before, ", "wall")):
            seconds = found[f"{start}{name}, {kind}"]
            cells += [f"{seconds:.0f} s, {ratio(seconds / found[f'{start}threads, {kind}'])} ×"]
        lines.append(cells)
    title = (
        f"`benchmarks/clusters.py cost`: all pairs of 300 attributes, {found['rows']:,.0f} rows; × threads with files"
    )
    return table((title, "CPU", "CPU at commit 2741c547", "wall", "wall at commit 2741c547"), *lines)


def large_job(found: Figures) -> str:
    return f"""\
`benchmarks/large.py job`: the [40]⁴⁰ job above on a million rows with `memory = "{found["memory"]}"` plans in \
{found["plan, seconds"]:.0f} s with {found["plan, GiB"]:.2f} GiB, counts and
measures all 10,701 residuals in {found["measure, seconds"]:.0f} s with {found["measure, GiB"]:.2f} GiB at its peak, \
and then answers a random query over three attributes in about
{found["answer, ms"]:.0f} ms."""


def many_sets(found: Figures) -> str:
    return f"""\
`benchmarks/large.py many_sets`: all pairs of {found["attributes"]:,.0f} attributes of four values, \
{found["rows"]:,.0f} rows, two cores: planned in {found["plan, s"]:.0f} s, counted and
measured in {found["measure, s"]:.0f} s, answered in {found["reconstruct, s"]:.0f} s, \
reported in {found["report, s"]:.0f} s: {found["seconds"]:.0f} s in all with {found["peak, GiB"]:.1f} GiB at the peak. \
{found["files"]:.0f} files of
{found["MB"]:.0f} MB remain, including a report of {found["report, MB"]:.2f} MB; `Release.open` takes \
{found["open, s"]:.2f} s, one marginal {found["marginal, ms"]:.1f} ms."""


def cluster_kills(found: Figures) -> str:
    caused = {name.removeprefix("faults, "): count for name, count in found.items() if name.startswith("faults, ")}
    head = (f"`benchmarks/clusters.py kills`: {sum(caused.values()):.0f} faults of processes of "
            f"{found['runs']:.0f} runs with a real noise key", "number")  # fmt: skip
    kinds = {
        "kill scheduler": "kills (SIGKILL) of the scheduler",
        "kill worker": "kills of a worker",
        "kill client": "kills of the client",
        "suspend scheduler": "suspensions (SIGSTOP, up to 15 s) of the scheduler",
        "suspend worker": "suspensions of a worker",
        "suspend client": "suspensions of the client, or of the driver on the cluster",
        "retire worker": "retired workers",
        "shrink worker": "workers of 300 MB in place of others",
        "older version": "workers that state an older version",
        "cancel": "cancelled drivers",
    }
    rows = {label: f"faults, {kind}" for kind, label in kinds.items()} | {
        "of all faults, before the first stage": "faults in stage start",
        "of all faults, in the stage that plans": "faults in stage plan",
        "of all faults, in the stage that draws noise": "faults in stage measure",
        "of all faults, in the stage that writes answers": "faults in stage reconstruct",
        "of all faults, in the stage that writes the report": "faults in stage report",
        "runs with a fixed plan": "runs, fixed plan",
        "runs with `aim-grem`": "runs, aim-grem",
        "of all runs, with the driver on the cluster (`submit`)": "submitted",
        "repetitions of the command": "resumptions",
        "refusals (exit code 2) of a small or older worker": "refusals",
        "files of values and decisions that were observed": "files",
        "comparisons of the visible files with the ledger": "audits",
        "of these, while another process locked the ledger": "locked ledgers",
        "seconds": "seconds",
        "CPU seconds": "CPU seconds",
        "violations of: one charge, one draw, same answers, nothing left, no task on an older version": "violations",
    }
    return table(head, *([label, f"{found.get(key, 0):,.0f}"] for label, key in rows.items()))


def growth(found: Figures) -> str:
    what = {
        "rows": "rows: a whole job, all pairs of 10 attributes",
        "duckdb": "the same pairs counted by DuckDB",
        "polars": "by Polars",
        "attributes": "attributes of four values: planning all pairs",
        "cells": "cells of one attribute: planning a 1-way prefix",
        "sets": "attributes of ten cells: planning 1-way range + 2-way affine + 3-way prefix",
        "files": "files of 10 rows: counting all pairs of 10 attributes",
    }
    units = {"attributes": "set", "cells": "cell", "sets": "set", "files": "file"} | dict.fromkeys(
        ("rows", "duckdb", "polars"), "row"
    )
    lines = []
    for kind, label in what.items():
        sizes = sorted(int(key.split(",")[0].split()[1]) for key in found if key.startswith(f"{kind} "))
        cells = [f"{size:,}: {significant(found[f'{kind} {size}, CPU seconds'], 2)} s,"
                f" {found[f'{kind} {size}, GiB']:.2f} GiB" for size in dict.fromkeys(sizes)]  # fmt: skip
        marginal = f"{significant(1e9 * found[f'{kind}, marginal'], 2)} ns per {units[kind]}"
        lines.append([label, *cells, marginal, f"{found[f'{kind}, exponent']:.2f}"])
    head = ("`benchmarks/large.py growth`: CPU time and peak memory", "small", "middle", "large",
            "marginal cost of the last step", "its exponent")  # fmt: skip
    return table(head, *lines)


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
    shown = table((f"`benchmarks/counting.py reading`: {what}", *heads), *lines, small)

    peers = (
        "pyarrow's data set",
        "the same files without folders",
        "pyarrow's values",
        "without the path of small groups",
    )
    ratios = table(
        ("CPU time over that of", *peers),
        *([label, *(ratio(found[key]) if (key := f"{label}, over {peer}") in found else "" for peer in peers)]
          for label in dict.fromkeys(key.split(", over ")[0] for key in found if ", over " in key)),
    )  # fmt: skip
    return f"{shown}\n\n{ratios}"


def profiles(found: Figures) -> str:
    lines = []
    for name in dict.fromkeys(key.split(": ")[0] for key in found if ": " in key):
        parts = {key.split(": ")[1]: share for key, share in found.items() if key.startswith(f"{name}: ")}
        lines.append([name, ", ".join(f"{part} {100 * share:.1f} %" for part, share in parts.items())])
    shown = table(("`benchmarks/commands.py profiles`: CPU time by part, under a profiler", "largest parts"), *lines)

    shares = ("libraries", "dpscale", "rest")
    names = [key.removesuffix(", rest") for key in found if key.endswith(", rest")]
    short = table(("time of short processes", "imports of libraries", "imports of modules of dpscale", "rest"),
                  *([name, *(percent(found[f"{name}, {share}"]) for share in shares)] for name in names))  # fmt: skip
    return f"""{shown}

{short}

A synthetic row of Adult takes {found["rows, µs"]:.1f} CPU µs, {found["rows, loops µs"]:.1f} of them in compiled loops
(limit of the rest: {found["rows, limit"]:g})."""


def wide_adaptive(found: Figures) -> str:
    stages = ("plan", "measure", "reconstruct", "report")
    title = (f"`benchmarks/large.py wide_adaptive`: `aim-grem`, all pairs of {found['attributes']:.0f} "
             f"attributes, {found['rows']:,.0f} rows")  # fmt: skip
    names = {"before": "commit 2741c547", "now": f"now (limit {found['limit']:g} CPU s)"}
    rows = [[label, *(f"{found[f'{name}, {what}']:.0f}" for what in ("CPU", *stages))] for name, label in names.items()]
    shown = table((title, "CPU s", *(f"s of {stage}" for stage in stages)), *rows)
    wanted, ratio = found["limit"] / found["stated"], found["now, CPU"] / found["before, CPU"]
    return f"""{shown}

The machine of the limit took {found["stated"]:.0f} CPU s for the earlier commit: the limit is a ratio of {wanted:.2f}.
Here the ratio is {ratio:.2f}."""


def commands(found: Figures) -> str:
    rows = []
    for name in (key.removesuffix(", now") for key in found if key.endswith(", now")):
        before, now, limit = (found.get(f"{name}, {kind}") for kind in ("before", "now", "limit"))
        rows.append([name, "" if before is None else f"{before:.2f}", f"{now:.2f}",
                     ratio(now / found[f"{name}, imports"]), "" if limit is None else f"{limit:g}"])  # fmt: skip
    unit = min(value for key, value in found.items() if key.endswith(", imports"))
    head = ("`benchmarks/commands.py processes`: CPU seconds of whole processes, without stored plans", "before", "now",
            f"times imports of NumPy, pyarrow, Dask and pydantic ({unit:.2f} s at least)", "limit")  # fmt: skip
    return table(head, *rows)


BLOCKS = (
    main_job,
    counting,
    noise,
    scaling,
    shares,
    cluster_kills,
    large_job,
    many_sets,
    growth,
    reading,
    databases,
    commands,
    profiles,
    many_rows,
    cluster_cost,
    units,
    wide_adaptive,
    install,
)
