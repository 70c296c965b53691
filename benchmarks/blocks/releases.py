"""Blocks about synthetic rows and about intervals."""

from __future__ import annotations

from typing import Any

from base import fine, table

Figures = dict[str, Any]


EPSILONS = ("0.1", "1", "10")


def multiple_tables(found: Figures) -> str:
    what = "coverage (width over error; error over that of one table)"
    head = (f"`benchmarks/intervals.py multiple_tables`: 95 % intervals of logistic coefficients, {what}",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    kinds = {"single": "one table, ordinary standard errors", "replicas": "rows of simulated releases",
             "multiple": "rows of perturbed estimates, combining rule"}  # fmt: skip
    names = dict.fromkeys(key.split(", ")[0] for key in found)
    rows = [[f"{name}: {label}", *(f"{found[f'{name}, {e}, {kind}, coverage']:.2f} "
                                   f"({found[f'{name}, {e}, {kind}, width']:.2f}; "
                                   f"{found[f'{name}, {e}, {kind}, error']:.2f})" for e in EPSILONS)]
            for name in names for kind, label in kinds.items()]  # fmt: skip
    return table(head, *rows)


INTERVAL_CLASSES = (
    "cells from 1 %",
    "cells below 1 %",
    "cumulative from 1 %",
    "cumulative below 1 %",
    "sums",
    "differences",
)


def intervals(found: Figures) -> str:
    """Return tables by kind of query and ε, and by table, and the CPU time of whole jobs."""
    head = ("`benchmarks/intervals.py queries --leave-out`: least, median and most of the tables "
            "(tables within the limits)",
            "ε", "coverage", "ratio", "joint", "width")  # fmt: skip
    by_kind = []
    for degree in (1, 2, 3):
        for kind in INTERVAL_CLASSES:
            for epsilon in EPSILONS:
                group = f"{degree}-way {kind}, {epsilon}"
                if f"{group}, cases" in found:
                    shares = [percent_by_end(found, group, name) for name in ("coverage", "joint")]
                    ratios = [plain(found, group, name) for name in ("ratio", "width")]
                    by_kind.append([f"{degree}-way {kind}", epsilon, shares[0], ratios[0], shares[1], ratios[1]])
    names = [key.rsplit(", ", 1)[0] for key in found if key.endswith(", cases") and "-way" not in key]
    by_table = [[name, percent_by_end(found, name, "coverage"), plain(found, name, "ratio")] for name in names]
    times = "; ".join(f"ε = {epsilon}: {found[f'{epsilon}, none']:.2f} s without errors, "
                      f"{found[f'{epsilon}, simulated']:.2f} s with" for epsilon in EPSILONS)  # fmt: skip
    whole = ("the same by table: all kinds of queries and ε", "coverage", "ratio")
    return f"{table(head, *by_kind)}\n\n{table(whole, *by_table)}\n\nCPU time of `dpscale run` on Adult: {times}."


def conclusions(found: Figures) -> str:
    """Return a table of the coverage of intervals, and of the size and power of tests."""
    names = dict.fromkeys(key.rsplit(", ", 2)[0] for key in found)
    intervals_of = [name for name in names if f"{name}, {EPSILONS[0]}, finite" in found]
    what = "coverage of 95 % intervals, mean of the tables (least; told over true width; share with two ends)"
    head = [f"`benchmarks/conclusions.py comparisons`: {what}", *(f"ε = {epsilon}" for epsilon in EPSILONS)]
    rows = [[name, *(f"{found[f'{name}, {e}, mean']:.3f} ({found[f'{name}, {e}, least']:.2f}; "
                     f"{found[f'{name}, {e}, width']:.2f}; {found[f'{name}, {e}, finite']:.2f})" for e in EPSILONS)]
            for name in intervals_of]  # fmt: skip
    tests = ["rejections at 5 % of 2,000 records, mean of the tables (least, most)", *head[1:]]
    tested = [[name, *(f"{found[f'{name}, {e}, mean']:.3f} ({found[f'{name}, {e}, least']:.2f}, "
                       f"{found[f'{name}, {e}, most']:.2f})" for e in EPSILONS)]
              for name in names if name not in intervals_of]  # fmt: skip
    return f"{table(head, *rows)}\n\n{table(tests, *tested)}"


NOISE, POPULATION = "noise", "noise, sampling of the records"


ADAPTIVE = "noise, shrinkage, selection (approximate)"


COVERED = (  # statistic, what its interval covers, and the figures or the benchmark of its coverage
    ("cells, cumulative and other linear queries, total, area: least squares", NOISE, "difference of counts"),
    (
        "the same from an adaptive job: 1-way cells of at least 1 % of the records",
        ADAPTIVE,
        "1-way cells from 1 %",
    ),
    ("2-way cells of at least 1 %", ADAPTIVE, "2-way cells from 1 %"),
    ("3-way cells of at least 1 %", ADAPTIVE, "3-way cells from 1 %"),
    ("3-way cells below 1 %", ADAPTIVE, "3-way cells below 1 %"),
    (
        "2-way cumulative queries of at least 1 %",
        ADAPTIVE,
        "2-way cumulative from 1 %",
    ),
    ("differences of the cells of two groups", ADAPTIVE, "2-way differences"),
    ("all rows of a table, `joint=True`", "noise; of an adaptive job as above", "`benchmarks/intervals.py queries`"),
    ("quantile", "noise; a fitted tail in the last bin", "`benchmarks/number_statistics.py quantiles`"),
    ("mean and sum of an attribute", "noise, any position in the bins", "difference of means, large groups"),
    ("sum, ratio of numbers", "noise; of clipped values", "`benchmarks/number_statistics.py sums`"),
    ("mean of a number", "noise; the clipped part if the range was searched", "`benchmarks/number_statistics.py sums`"),
    ("std", "noise, to first order; of clipped values", "`benchmarks/number_statistics.py sums`"),
    ("units", "noise", "`benchmarks/units.py`"),
    ("share, crosstab with `normalize`", NOISE, "difference of shares, large groups"),
    ("difference of counts or sums", NOISE, "difference of counts"),
    ("difference of means", "noise, any position in the bins, the clipped part", "difference of means, large groups"),
    ("difference of shares", NOISE, "difference of shares, large groups"),
    ("the same, a group below 1 % of the records", NOISE, "difference of shares, small groups"),
    ("relative risk", NOISE, "relative risk, large groups"),
    ("odds ratio", NOISE, "odds ratio, large groups"),
    ("trend of counts", "noise that periods share", "trend of counts"),
    ("trend of shares", "noise that periods share", "trend of shares"),
    ("difference of means, `population=True`", POPULATION, "difference of means, large groups, population"),
    ("share and difference of shares, `population=True`", POPULATION, "difference of shares, large groups, population"),
    ("relative risk, `population=True`", POPULATION, "relative risk, large groups, population"),
    ("odds ratio, `population=True`", POPULATION, "odds ratio, large groups, population"),
)


def statistics_table(compared: Figures, adaptive_intervals: Figures) -> str:
    """Return what the interval of each statistic covers, and its measured coverage."""

    def measured(name: str, epsilon: str) -> str:
        if f"{name}, {epsilon}, mean" in compared:
            return f"{100 * compared[f'{name}, {epsilon}, mean']:.1f} %"
        if f"{name}, {epsilon}, coverage, median" in adaptive_intervals:
            return f"{adaptive_intervals[f'{name}, {epsilon}, coverage, median'] * 100:.1f} %"
        return name

    head = ("statistic", "the interval covers", *(f"coverage at ε = {epsilon}" for epsilon in EPSILONS))
    return table(head, *([what, covers, *(measured(source, e) for e in EPSILONS)] for what, covers, source in COVERED))


def percent_by_end(found: Figures, group: str, name: str) -> str:
    ends = ", ".join(f"{100 * found[f'{group}, {name}, {end}']:.2f}" for end in ("least", "median", "most"))
    return f"{ends} % ({within(found, group, name)})"


def plain(found: Figures, group: str, name: str) -> str:
    ends = ", ".join(f"{found[f'{group}, {name}, {end}']:.2f}" for end in ("least", "median", "most"))
    return f"{ends} ({within(found, group, name)})"


def within(found: Figures, group: str, name: str) -> str:
    return f"{found[f'{group}, {name}, within']:.0f} of {found[f'{group}, cases']:.0f}"


def rows(found: Figures) -> str:
    columns = [("adult", "0.1"), ("adult", "1"), ("adult", "10"), ("acs", "1"), ("salary", "1"), ("titanic", "1")]
    head = (
        "`benchmarks/rows.py errors`: all 3-way marginals, mean L1 error / N, δ = 10⁻⁹, 3 seeds",
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
        "as many records drawn from the estimate of each set by itself": "floor",
        "the estimates from which they are sampled": "estimates",
    }
    lines = [[label, *(fine(found[f"{t}, {e}, {key}"]) for t, e in columns)] for label, key in labels.items()]
    note = (
        f"\n\n(Adult, ε = 1: {found['seconds']:.1f} CPU seconds after the release, "
        f"{found['unpolished seconds']:.1f} not polished. "
        "Published: AIM by Private-PGM 0.179 in 349 s, "
        "dpsynth's SWIFT 0.180 in 302 s, MST 0.226 in 41 s.)"
    )
    ratios = ", ".join(
        f"{found[f'mean ratio, {e}']:.3f} ({found[f'largest ratio, {e}']:.3f})" for e in ("0.1", "1", "10")
    )
    note += f"\n\n(Rows over estimates at ε = 0.1, 1, 10, mean (largest) of all tables: {ratios}.)"
    return table(head, *lines) + note


LAW_CASES = ("parity of 3", "parity of 4", "parity of 5", "sums modulo 4", "two laws", "beside pairs and triples")


def laws(found: Figures) -> str:
    """Return the strength of laws in estimates and rows, and the scores of forests."""
    mechanisms = ("weighted-residuals", "aim-grem", "aim-pgm")
    head = (
        "`benchmarks/graphical.py laws`: 20,000 records, ε = 1, δ = 10⁻⁹, 2 seeds: least strength in estimates and "
        "rows; accuracy of a forest on rows",
        *(f"`{name}`" for name in mechanisms),
        "a forest on the records",
    )
    lines = []
    for case in LAW_CASES:
        keys = [f"{case}, {name}, epsilon 1" for name in mechanisms]
        shown = [", ".join(f"{found[f'{key}: {what}']:.3f}" for what in ("estimates", "rows", "forest on rows"))
                 for key in keys]  # fmt: skip
        lines.append([case, *shown, f"{found[f'{keys[0]}: forest on records']:.3f}"])
    outside = "parity of 4, outside the targets"
    kept, least = 100 * found[f"{outside}: kept"], found[f"{outside}: rows"]
    return table(head, *lines) + (
        "\n\n(A parity of 4 of 11 attributes at ε = 4, with all 3-way marginals as targets and `degree` 4: `aim-grem` "
        f"finds it in {kept:.0f} % of 10 seeds; least strength in rows {least:.3f}.)"
    )


def usefulness(found: Figures) -> str:
    """Return the scores on Adult of models trained on rows and on records, and of models that separate the two."""
    labels = {
        "predicting income: trained on rows, tested on records excluded from the job": "trained on rows",
        "the same, trained on the records of the job": "trained on records",
        "separating rows from excluded records (0.5: indistinguishable)": "propensity, kept out",
        "separating rows from the records of the job": "propensity, the job's",
    }
    what = "gradient boosting on Adult, area under the curve, δ = 10⁻⁹, 3 seeds"
    head = (f"`benchmarks/rows.py usefulness`: {what}", "ε = 0.1", "ε = 1", "ε = 10")
    lines = ([label, *(fine(found[f"{e}, {key}"]) for e in ("0.1", "1", "10"))] for label, key in labels.items())
    return table(head, *lines)


def declared_parents(found: Figures) -> str:
    """Return the errors with and without a declared hierarchy of regions and towns."""
    orders = {"in order": "listed region by region", "in any order": "in any order"}
    what = "60 towns in 8 regions and five attributes, 3-way marginals, mean L1 error / N"
    head = (f"`benchmarks/rows.py declared_parents`: {what}",
            "ε = 0.1", "ε = 1", "ε = 10")  # fmt: skip
    lines = []
    for kind, order in orders.items():
        own = [[found[f"{kind}, {epsilon}, {what}"] for epsilon in ("0.1", "1", "10")]
               for what in ("declared", "not", "wrong")]  # fmt: skip
        lines += [[f"towns {order}, hierarchy declared", *(f"{one:.3f}" for one in own[0])],
                  ["not declared", *(f"{one:.3f}" for one in own[1])],
                  ["not declared: records in a wrong region", *(f"{100 * one:.1f} %" for one in own[2])]]  # fmt: skip
    return table(head, *lines)


def targets(found: Figures) -> str:
    """Return the scores of models that are trained on rows with and without a target, and the gain of a target."""
    head = ("`benchmarks/rows.py targets`: area under the curve of gradient boosting, 4,000 records, δ = 10⁻⁹, "
            "20 seeds", "trained on rows", "on rows with a target", "gain", "on the records")  # fmt: skip
    rows = []
    for case in dict.fromkeys(name.rpartition(", ")[0] for name in found):
        plain, aimed, gain, error, records = (found[f"{case}, {what}"] for what in (
            "rows", "rows with a target", "gain", "error of the gain", "records"))  # fmt: skip
        rows.append([case.replace(", 0.1", ", ε = 0.1"), f"{plain:.2f}", f"{aimed:.2f}", f"{gain:.2f} ± {error:.2f}",
                     f"{records:.2f}"])  # fmt: skip
    return f"{table(head, *rows)}\n\n(± is the standard error of the mean of 20 differences.)"


def row_classes(found: Figures) -> str:
    """Return the errors of rows by number of attributes, over the least of estimates and rows of pairs."""
    parts = [name.split(", ") for name in found]
    epsilons, orders = (list(dict.fromkeys(part[at] for part in parts)) for at in (2, 3))
    head = ("`benchmarks/rows.py classes`: error of rows over the least of estimates and rows of pairs, of sets "
            f"of {', '.join(order[0] for order in orders)} attributes, all 3-way marginals, δ = 10⁻⁹",
            *(f"ε = {epsilon}" for epsilon in epsilons))  # fmt: skip
    cases = dict.fromkeys(f"{name}, {mechanism}" for name, mechanism, *_ in parts)
    rows = [[case, *(", ".join(f"{found[f'{case}, {epsilon}, {order}']:.2f}" for order in orders)
             for epsilon in epsilons)] for case in cases]  # fmt: skip
    above = sum(ratio > 1.05 for ratio in found.values()) / len(found)
    return f"{table(head, *rows)}\n\n(Above 1.05 are {100 * above:.0f} % of the {len(found)} cells.)"


def rules(found: Figures) -> str:
    """Return the share of rows that break a rule, and the error of counts, with and without rules."""
    what = "20,000 stays, `discharge >= admission` and `part <= whole`, rows of all 2-way marginals"
    head = (f"`benchmarks/rows.py rules`: {what}", "ε = 0.1", "ε = 1", "ε = 10")
    lines = []
    for mechanism in dict.fromkeys(key.split(", ")[0] for key in found):
        own = [[found[f"{mechanism}, {epsilon}, {figure}"] for epsilon in ("0.1", "1", "10")]
               for figure in ("free", "broken", "ratio")]  # fmt: skip
        lines += [[f"`{mechanism}`: rows that break a rule without rules", *(f"{100 * one:.1f} %" for one in own[0])],
                  ["with rules", *(f"{100 * one:.1f} %" for one in own[1])],
                  ["error of 1- and 2-way counts, with over without", *(f"{one:.3f}" for one in own[2])]]  # fmt: skip
    return table(head, *lines)


def regression(found: Figures) -> str:
    """Return coverage and width of the intervals of regressions, by table, family and ε."""
    title = f"`benchmarks/conclusions.py regression`: {found['releases']} releases each, delta 1e-9"
    head = (title, "ε", "told", "coverage of told", "width over that of true moments",
            "narrower than half the public range: told", "width over peer")  # fmt: skip

    def cell(group: str, name: str, form: str) -> str:
        return format(found[f"{group}, {name}"], form) if f"{group}, {name}" in found else ""

    rows = []
    for group in [key.removesuffix(", told") for key in found if key.endswith(", told")]:
        due = f"{found[f'{group}, due']:.0f} of {found[f'{group}, coefficients']:.0f}"
        share = cell(group, "due told", ".0%")
        name, _, epsilon = group.rpartition(", ")
        rows.append([name, epsilon, cell(group, "told", ".0%"), cell(group, "coverage", ".1%"),
                     cell(group, "width", ".2f"), f"{due}: {share}" if share else due,
                     cell(group, "peer", ".2f")])  # fmt: skip
    lines = list(dict.fromkeys(key.rpartition(", ")[0] for key in found if key.startswith("opendp ")))
    if not lines:
        return table(head, *rows)
    epsilons = list(dict.fromkeys(key.rpartition(", ")[2] for key in found if key.startswith("opendp ")))
    peer = ("slope of a line: OpenDP's private Theil-Sen regression over the standard deviation of the release",
            *(f"ε = {epsilon}" for epsilon in epsilons))  # fmt: skip
    peers = [[line.removeprefix("opendp "), *(f"{found[f'{line}, {epsilon}']:.1f}" for epsilon in epsilons)]
             for line in lines]  # fmt: skip
    return f"{table(head, *rows)}\n\n{table(peer, *peers)}"


BLOCKS = (
    declared_parents,
    rules,
    rows,
    usefulness,
    targets,
    row_classes,
    laws,
    intervals,
    conclusions,
    regression,
    multiple_tables,
)
