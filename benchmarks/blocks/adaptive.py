"""Blocks about adaptive mechanisms, and other packages beside them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from base import fine, significant, table, times

Figures = dict[str, Any]


EPSILONS = ("0.1", "1", "10")


def leave_out(found: Figures) -> str:
    head = ("`benchmarks/adaptive.py leave_out`: error of `aim-grem` over that of commit 111f38d, ± standard error",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    names = [key.removesuffix(", ε = 1, standard error") for key in found if key.endswith(", ε = 1, standard error")]
    rows = [[name, *(f"{found[f'{name}, ε = {e}']:.3f} ± {found[f'{name}, ε = {e}, standard error']:.3f}"
                     for e in EPSILONS)] for name in names]  # fmt: skip
    mean = ["geometric mean", *(f"{found[f'mean, ε = {e}']:.3f}" for e in EPSILONS)]
    worse = ["tables above 1.05 beyond two standard errors", *(f"{found[f'worse, ε = {e}']:.0f}" for e in EPSILONS)]
    largest = ["largest of all tables", *(f"{found[f'largest, ε = {e}']:.3f}" for e in EPSILONS)]
    return table(head, *rows, mean, largest, worse)


def pair_ideas(found: Figures) -> str:
    head = ("`benchmarks/adaptive.py pair_ideas`: mean error over that without the idea, six tables",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    kinds = {"components": "leading components of measured pairs", "signs": "random projections",
             "halves": "two groups of each attribute", "groups": "all unmeasured pairs, at low precision"}  # fmt: skip
    rows = []
    for kind, label in kinds.items():
        rows.append([label, *(f"{found[f'{kind}, ε = {e}']:.3f}" for e in EPSILONS)])
        rows.append([f"{label}: exact and without cost", *(f"{found[f'{kind}, free, ε = {e}']:.3f}" for e in EPSILONS)])
    share = f"(Measured for {100 * found['share']:.0f} % of the budget after the rounds.)"
    return f"{table(head, *rows)}\n\n{share}"


def audits(found: Figures) -> str:
    names = [key.removesuffix(", bound") for key in found if key.endswith(", bound")]
    head = ("`benchmarks/adaptive.py audits`: attacks on `aim-grem`, lower bounds at a confidence of 95 % "
            "(99.9 % if planted)",
            "bound", "claim", "bound over claim", "check")  # fmt: skip
    rows = [[name, f"{found[f'{name}, bound']:.3f}", f"{found[f'{name}, claim']:.3f}",
             f"{found[f'{name}, bound'] / found[f'{name}, claim']:.3f}", found[f"{name}, result"]]
            for name in names]  # fmt: skip
    return table(head, *rows)


AHEAD = {"cells": "marginals", "cumulative": "prefixes and ranges"}


def adaptive(found: Figures) -> str:
    rows = {
        "`aim-grem`": "ours",
        "product of 1-ways with the whole budget": "product of 1-ways",
        "`residual-planner` with `maxent`": "ResidualPlanner, maxent",
        "AIM+GReM as published": "AIM+GReM as published",
        "`residual-planner`": "ResidualPlanner",
    }
    columns = ("adult, 0.1", "adult, 1", "adult, 10", "acs, 1", "salary, 1", "titanic, 1")
    head = (
        "`benchmarks/adaptive.py mechanisms`: all 3-way marginals, mean L1 error / N, δ = 10⁻⁹, 3 seeds",
        "Adult, ε = 0.1", "ε = 1", "ε = 10", "ACS, ε = 1", "salary, ε = 1", "titanic, ε = 1",
    )  # fmt: skip
    shown = ([label, *(times(found, f"{key}, {column}") for column in columns)] for label, key in rows.items())
    elsewhere = "(Published for Adult: AIM with Private-PGM 0.345 in 133 s at ε = 0.1 and 0.166 in 349 s at ε = 1.)"
    return f"{table(head, *shown)}\n\n{elsewhere}\n\n{every_table(found)}"


def every_table(found: Figures) -> str:
    """Return the errors of `aim-grem` and of the product of 1-ways on all tables, with the seconds of a run."""
    epsilons = ("0.1", "1", "10")
    head = ("the same, on every table", *(f"`aim-grem`, ε = {e}" for e in epsilons),
            *(f"product, ε = {e}" for e in epsilons), *(f"seconds, ε = {e}" for e in epsilons))  # fmt: skip
    names = dict.fromkeys(key.split(", ")[1] for key in found if key.startswith("ours, ") and "seconds" not in key)
    lines = ([name, *(times(found, f"{kind}, {name}, {e}") for kind in ("ours", "product of 1-ways", "ours, seconds")
                      for e in epsilons)] for name in names)  # fmt: skip
    return table(head, *lines)


def graphical(found: Figures) -> str:
    head = (
        "`benchmarks/graphical.py mechanisms`: Adult, ε = 1, as above; the same measurements for `mbi`",
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


GREM_TABLES = {"adult": "Adult", "acs": "ACS", "loans": "Loans"}


GREM_MECHANISMS = ("residual-planner", "aim-grem, published", "aim-grem, default", "mst", "aim-pgm, published",
                   "aim-pgm, default")  # fmt: skip


GREM_METRICS = {"L1": "mean L1 error / N", "L2": "mean L2 error / N", "max L1": "largest L1 error / N",
                "seconds": "CPU seconds of the run and all answers"}  # fmt: skip


GREM_PAPER = {"adult": "8.10, 16.6, 150", "acs": "312, 608, 14,095", "loans": "37.9, 489, 3,507"}


GREM_PAPER_ERRORS = {"adult": 10.166 / 9.532, "acs": 0.060 / 0.053, "loans": 641.795 / 622.507}


def aim_grem(found: Figures) -> str:
    """Return the tables of the AIM+GReM paper: updates and allocation, errors by mechanism, the loop, transforms."""
    kinds = ("lazy, CRP", "touched, CRP", "lazy, IID", "touched, IID", "full, IID")
    head = (
        "`benchmarks/aim_grem.py`: a fixed sequence of all 3-way marginals, ε = 1, CPU seconds", *kinds,
        "paper: lazy CRP, lazy IID, full IID", "L1 error / N, CRP", "IID", "IID over CRP", "paper",
    )  # fmt: skip
    lines = []
    for name, label in GREM_TABLES.items():
        crp, iid = (found[f"table 2, {name}, error, {kind}"] for kind in ("CRP", "IID"))
        times = (significant(found[f"table 2, {name}, {kind}"], 3) for kind in kinds)
        lines.append(
            [label, *times, GREM_PAPER[name], fine(crp), fine(iid), fine(iid / crp), fine(GREM_PAPER_ERRORS[name])]
        )
    metrics = (_by_mechanism(found, metric, what) for metric, what in GREM_METRICS.items())
    return "\n\n".join(
        [table(head, *lines), _reconstructions(found), *metrics, _shapes(found), _models(found), _grem_notes(found)]
    )


def _reconstructions(found: Figures) -> str:
    """Return the reconstructions of a round in the fixed sequence, by kind of update."""
    kinds = [f"{kind}, {short}" for short in ("CRP", "IID") for kind in ("lazy", "touched", "full")]
    head = (
        "`benchmarks/aim_grem.py`: the same sequence, reconstructions of a residual in a marginal, per round",
        *kinds,
    )
    return table(head, *([label, *(significant(found[f"table 2, {name}, {kind}, Recon"], 3) for kind in kinds)]
                         for name, label in GREM_TABLES.items()))  # fmt: skip


def _shapes(found: Figures) -> str:
    """Return errors and seconds on tables with the paper's numbers of attributes."""
    keys = [key.removesuffix(", L1") for key in found if key.startswith("shape ") and key.endswith(", L1")]
    shapes = dict.fromkeys(key.split(", ")[0].removeprefix("shape ") for key in keys)
    names = dict.fromkeys(key.split(", ", 1)[1] for key in keys)
    head = ("`benchmarks/aim_grem.py --only shapes`: L1 error / N, ε = 1, CPU seconds",
            *(f"{count} attributes" for count in shapes))  # fmt: skip
    return table(head, *([f"`{name}`", *(_error_in_seconds(found, f"shape {count}, {name}") for count in shapes)]
                         for name in names))  # fmt: skip


def _error_in_seconds(found: Figures, key: str) -> str:
    return f"{fine(found[f'{key}, L1'])} in {significant(found[f'{key}, seconds'], 3)} s"


def _models(found: Figures) -> str:
    """Return the cells of published AIM+PGM, with the time at which those were stopped that did not end."""
    keys = [key.removesuffix(", seeds") for key in found if key.startswith("models, ") and key.endswith(", seeds")]
    head = ("`benchmarks/papers.py aim-grem --nightly`: AIM+PGM as published, L1 error / N, CPU seconds (seeds)",
            "ε = 0.1", "1", "10")  # fmt: skip

    def cell(key: str) -> str:
        own = _error_in_seconds(found, key) if f"{key}, L1" in found else "none"
        late = f", stopped after {found[f'{key}, stopped']:.0f} s" if found[f"{key}, stopped"] else ""
        return f"{own} ({found[f'{key}, seeds']:.0f}){late}"

    tables = dict.fromkeys(key.split(", ")[1] for key in keys)
    return table(head, *([GREM_TABLES[name], *(cell(f"models, {name}, {epsilon}") for epsilon in ("0.1", "1", "10"))]
                         for name in tables))  # fmt: skip


def _by_mechanism(found: Figures, metric: str, what: str) -> str:
    """Return one metric of every mechanism by table and ε; blank if it was not run."""
    columns = [(name, epsilon) for name in GREM_TABLES for epsilon in ("0.1", "1", "10")]
    head = (f"`benchmarks/aim_grem.py`: all 3-way marginals, δ = 10⁻⁹, {what}",
            *(f"{GREM_TABLES[name]}, ε = {epsilon}" for name, epsilon in columns))  # fmt: skip
    lines = []
    for mechanism in GREM_MECHANISMS:
        values = [found.get(f"{name}, {epsilon}, {mechanism}, {metric}") for name, epsilon in columns]
        lines.append([f"`{mechanism}`", *("" if value is None else significant(value, 3) for value in values)])
    return table(head, *lines)


def _grem_notes(found: Figures) -> str:
    """Return the comparison of the loops, of the transforms and of the sizes of the model."""
    loops = "; ".join(
        f"{key.removeprefix('loop, ').removesuffix(', touched')} {significant(value, 3)} s against "
        f"{significant(found[key.replace('touched', 'lazy')], 3)} s"
        for key, value in found.items()
        if key.startswith("loop, ") and key.endswith(", touched")
    )
    recons = "; ".join(
        f"{key.removeprefix('loop, ').removesuffix(', touched, Recon')} {significant(value, 3)} against "
        f"{significant(found[key.replace('touched', 'lazy')], 3)}"
        for key, value in found.items()
        if key.startswith("loop, ") and key.endswith(", touched, Recon")
    )
    refits = "; ".join(
        f"{name} {found[f'default, {name}, residuals averaged']:.1f} residuals averaged, "
        f"{found[f'default, {name}, tables fitted']:.1f} tables of {found[f'default, {name}, candidates']:.0f} "
        f"candidates fitted again, in {found[f'default, {name}, rounds']:.0f} rounds"
        for name in GREM_TABLES
    )
    speedups = ", ".join(
        f"{name} {significant(found[f'{name}, {setting}'], 3)} ({setting})"
        for setting in ("fixed size", "fixed degree")
        for name in ("Decomp", "Recon")
    )
    sizes = "; ".join(
        f"{size} MB {fine(found[f'sizes, {size} MB, L1'])} in {significant(found[f'sizes, {size} MB, seconds'], 3)} s"
        for size in (10, 50)
    )
    return (
        f"(Selection loop of `published = true`, ε = 1, touched against lazy updates, same selections: {loops}. "
        f"Reconstructions of a residual in a marginal, per round, touched against lazy: {recons}. "
        f"Default `aim-grem`, per round: {refits}. "
        f"Mean speedup of in-axis over dense Kronecker transforms: {speedups}; the paper: Decomp 3.14 and 3.75. "
        f"Published `aim-pgm` on Adult at ε = 1 by the size of the model, 1 MB in the tables: {sizes}. "
        "Two seeds, `aim-pgm` one; ACS is NIST's excerpt of 24 attributes, Loans is generated from the schema of 12; "
        "the paper's tables have 15, 66 and 43 attributes and are not published.)"
    )


def ahead(found: Figures) -> str:
    """Return the advantage of the adaptive mechanism by the relative error of the plan."""
    edges = list(dict.fromkeys(key.split(", ")[0].split()[1] for key in found))
    names = [f"{low} to {high}" for low, high in pairwise(edges)] + [f"above {edges[-1]}"]
    what = "error of the plan relative to the mean count of a query with records spread evenly"
    head = (f"`benchmarks/adaptive.py ahead`: {what}", *names)
    return table(head, *(line for kind, label in AHEAD.items() for line in _kind_lines(found, edges, kind, label)))


def _kind_lines(found: Figures, edges: list[str], kind: str, label: str) -> list[list[str]]:
    def format_values(name: str, form: str, scale: int = 1) -> list[str]:
        values = [found.get(f"{kind} {low}, {name}") for low in edges]
        return ["" if value is None else format(scale * value, form) for value in values]

    return [[f"{label}: cases (families, degrees, tables, ε)", *format_values("cases", ".0f")],
            ["error of `weighted-residuals` over that of `aim-grem`, geometric mean", *format_values("ratio", ".2f")],
            ["cases in which `aim-grem` is more accurate, %", *format_values("ahead", ".0f", 100)]]  # fmt: skip


OURS, ROWS = "dpscale aim-grem", "dpscale aim-grem, rows"


LABELS = {
    OURS: "`aim-grem`", ROWS: "`aim-grem`, rows", "mbi AIM": "`mbi`: AIM", "mbi MST": "MST",
    "mbi mixture": "mixture of products", "dpsynth SWIFT": "`dpsynth`: SWIFT", "dpmm AIM": "`dpmm`: AIM",
    "dpmm MST": "MST", "dpmm PrivBayes": "PrivBayes",
}  # fmt: skip


def rivals(found: Figures) -> str:
    """Return the table of all cells, the limits, and where a rival is ahead."""
    cells = list(dict.fromkeys(key.removeprefix(f"{OURS}, ") for key in found
                               if key.startswith(f"{OURS}, ") and not key.startswith(ROWS)
                               and not key.endswith((", seconds", ", seeds"))))  # fmt: skip
    names = [name for name in LABELS if any(key.startswith(f"{name}, ") for key in found)]
    head = ("`benchmarks/rivals.py estimates`: mean L1 error / N (seeds), CPU seconds", "ε",
            *(LABELS[name] for name in names))  # fmt: skip
    lines = [[*cell.split(", "), *(outcome(found, f"{name}, {cell}") for name in names)] for cell in cells]
    return f"{table(head, *lines)}\n\n{limits(found)} {rivals_ahead(found, cells, names)}"


def outcome(found: Figures, key: str) -> str:
    """Return error and seconds of a cell, or how its runs ended."""
    value = found.get(key, "")
    if isinstance(value, str):
        return value
    return f"{fine(value)} ({found[f'{key}, seeds']:g}), {significant(found[f'{key}, seconds'], 2)} s"


def limits(found: Figures) -> str:
    """Return the sentences about the limits and the outcomes that occur in the table."""
    return (f"Each run is limited to {found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB. "
            f"A run that takes more than {found['seconds of a repeated run']:g} s is not repeated; all runs took "
            f"{found['CPU minutes']:.0f} CPU minutes. "
            "SWIFT has 2,500 steps instead of 10,000; step size and candidates of the mixture were chosen on nursery "
            "at ε = 1 with the first seed; other options are defaults or those of the papers. Other programs shared "
            "the cores. "
            + outcomes(found)).strip()  # fmt: skip


def outcomes(found: Figures) -> str:
    """Return the sentences about the ends of runs that occur in a table."""
    notes = {
        "not run": '"Not run": over a limit at a smaller ε.',
        "not reached": '"Not reached": the whole run was stopped before.',
        "failed": '"Failed": the package raised an error.',
    }
    return " ".join(note for word, note in notes.items() if word in found.values())


def rivals_ahead(found: Figures, cells: list[str], names: list[str]) -> str:
    """Return the sentence that says where a rival has a smaller error than the estimates of `aim-grem`."""
    others = [name for name in names if name not in (OURS, ROWS)]
    done, better, least = 0, [], []
    for cell in cells:
        errors = {name: found[f"{name}, {cell}"] for name in others
                  if not isinstance(found.get(f"{name}, {cell}", ""), str)}  # fmt: skip
        if not errors:
            continue
        done += 1
        best, ours = min(errors, key=lambda name: errors[name]), found[f"{OURS}, {cell}"]
        least.append(errors[best] / ours)
        if errors[best] < ours:
            where, epsilon = cell.split(", ")
            better.append(f"{where} at ε = {epsilon} (`{best.split()[0]}` {best.split()[1]}: {errors[best] / ours:.2f} "
                          f"times the error)")  # fmt: skip
    if not done:
        return "No run of a rival ended within the limits."
    start = (f"The best rival has {min(least):.2f} to {max(least):.2f} times the error of the estimates of `aim-grem` "
             f"in the {done} of {len(cells)} cells in which a rival ends within the limits; ")  # fmt: skip
    if not better:
        return f"{start}a rival is ahead in none."
    return f"{start}a rival is ahead in {len(better)}: {'; '.join(better)}."


ROW_LABELS = {
    "records drawn again": "records drawn again, not private", "records columns alone": "columns alone, not private",
    "dpscale weighted-residuals": "`weighted-residuals`", "dpscale aim-grem": "`aim-grem`",
    "dpscale aim-pgm": "`aim-pgm`", "mbi AIM": "`mbi`: AIM", "mbi MST": "`mbi`: MST",
    "mbi mixture": "`mbi`: mixture of products", "dpsynth SWIFT": "`dpsynth`: SWIFT", "dpmm AIM": "`dpmm`: AIM",
    "dpmm MST": "`dpmm`: MST", "dpmm PrivBayes": "`dpmm`: PrivBayes", "margnet MargNet": "MargNet",
}  # fmt: skip


LEARNERS = ("logistic regression", "tree", "forest", "boosting")


def row_rivals(found: Figures) -> str:
    """Return the measures of the rows of every package, the limits, and the packages that were not run."""
    head = ("`benchmarks/rivals.py rows`: rows of", "table", "ε", "distance, 1-way", "2-way", "3-way",
            f"balanced accuracy: {' / '.join(LEARNERS)}", "propensity", "membership",
            "CPU seconds (seeds)")  # fmt: skip
    runs = [key for key in found if key.count(", ") == 2 and key.rsplit(", ", 2)[0] in ROW_LABELS]
    cells = sorted(
        dict.fromkeys(tuple(key.split(", ")[1:]) for key in runs), key=lambda cell: (cell[0], float(cell[1]))
    )
    lines = [row_measures(found, name, cell) for cell in cells for name in ROW_LABELS
             if f"{name}, {', '.join(cell)}" in found]  # fmt: skip
    missing = "; ".join(f"{key.removesuffix(', not run')}: {value}" for key, value in found.items()
                        if key.endswith(", not run"))  # fmt: skip
    limit = (f"Each run is limited to {found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB; one "
             f"of more than {found['seconds of a repeated run']:g} s is not repeated; all took "
             f"{found['CPU minutes']:.0f} CPU minutes. A fifth of each table is held out. Propensity and membership "
             "are AUC, at best 0.5; copies of records are below it in the former. Other programs shared the cores. "
             f"{outcomes(found)}").strip()  # fmt: skip
    return f"{table(head, *lines)}\n\n{limit} Packages left out: {missing}."


def row_measures(found: Figures, name: str, cell: tuple[str, ...]) -> list[str]:
    """Return a line of the table of rows: all measures, or how the runs ended."""
    key = f"{name}, {', '.join(cell)}"
    start = [ROW_LABELS[name], *cell]
    if isinstance(found[key], str):
        return [*start, found[key], *[""] * 6]
    distances = [found[key], *(found[f"{key}, {degree}-way"] for degree in (2, 3))]
    scores = " / ".join(f"{found[f'{key}, {learner}']:.2f}" for learner in LEARNERS)
    return [*start, *(f"{value:.3f}" for value in distances), scores, f"{found[f'{key}, propensity']:.2f}",
            f"{found[f'{key}, membership']:.2f}",
            f"{found[f'{key}, seconds']:.1f} ({found[f'{key}, seeds']:g})"]  # fmt: skip


def wide_rivals(found: Figures) -> str:
    """Return the mechanisms that ended on generated tables of many attributes."""
    head = ("`benchmarks/rivals.py wide`: 66 attributes, mean L1 error / N (seeds), CPU seconds",
            "table", "ε", "result")  # fmt: skip
    cells = [key.removesuffix(", seconds") for key in found if key.endswith(", seconds")]
    lines = [[LABELS[(own := cell.rsplit(", ", 2))[0]], *own[1:], outcome(found, cell)] for cell in cells]
    limits = f"{found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB"
    repeated = f"{found['seconds of a repeated run']:g} CPU seconds"
    limit = (f"Each run is limited to {limits}; those of up to {repeated} are repeated. All took "
             f"{found['CPU minutes']:.1f} CPU minutes.")  # fmt: skip
    return f"{table(head, *lines)}\n\n{limit}"


BLOCKS = (adaptive, ahead, graphical, aim_grem, leave_out, pair_ideas, audits, rivals, row_rivals, wide_rivals)
