"""Blocks of docs/benchmarks.md with errors of released tables and rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rounding import fine, significant, table, times

Figures = dict[str, Any]
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
        "`benchmarks/adaptive.py`: all 3-way marginals, mean L1 error / N, δ = 10⁻⁹, 3 seeds",
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


def rows(found: Figures) -> str:
    columns = [("adult", "0.1"), ("adult", "1"), ("adult", "10"), ("acs", "1"), ("salary", "1"), ("titanic", "1")]
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
        "the estimates from which they are sampled": "estimates",
    }
    lines = [[label, *(fine(found[f"{t}, {e}, {key}"]) for t, e in columns)] for label, key in labels.items()]
    note = (
        f"\n\n(Adult, ε = 1: {found['seconds']:.1f} CPU seconds after the release, "
        f"{found['unpolished seconds']:.1f} not polished. "
        "Published: AIM by Private-PGM 0.179 in 349 s, "
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
    """Return the scores on Adult of models trained on rows and on records, and of models that separate the two."""
    labels = {
        "predicting income: trained on rows, tested on records excluded from the job": "trained on rows",
        "the same, trained on the records of the job": "trained on records",
        "separating rows from excluded records (0.5: indistinguishable)": "propensity, kept out",
        "separating rows from the records of the job": "propensity, the job's",
    }
    what = "gradient boosting on Adult, area under the curve, δ = 10⁻⁹, 3 seeds"
    head = (f"`benchmarks/usefulness.py`: {what}", "ε = 0.1", "ε = 1", "ε = 10")
    lines = ([label, *(fine(found[f"{e}, {key}"]) for e in ("0.1", "1", "10"))] for label, key in labels.items())
    return table(head, *lines)


def hierarchy(found: Figures) -> str:
    """Return the errors with and without a declared hierarchy of regions and towns."""
    orders = {"in order": "listed region by region", "in any order": "in any order"}
    head = ("`benchmarks/hierarchy.py`: 60 towns in 8 regions and five attributes, 3-way marginals, mean L1 error / N",
            "ε = 0.1", "ε = 1", "ε = 10")  # fmt: skip
    lines = []
    for kind, order in orders.items():
        own = [[found[f"{kind}, {epsilon}, {what}"] for epsilon in ("0.1", "1", "10")]
               for what in ("declared", "not", "wrong")]  # fmt: skip
        lines += [[f"towns {order}, hierarchy declared", *(f"{one:.3f}" for one in own[0])],
                  ["not declared", *(f"{one:.3f}" for one in own[1])],
                  ["not declared: records in a wrong region", *(f"{100 * one:.1f} %" for one in own[2])]]  # fmt: skip
    return table(head, *lines)


def ahead(found: Figures) -> str:
    """Return the advantage of the adaptive mechanism by the relative error of the plan."""
    edges = list(dict.fromkeys(key.split(", ")[0].split()[1] for key in found))
    names = [f"{low} to {high}" for low, high in pairwise(edges)] + [f"above {edges[-1]}"]
    what = "error of the plan relative to the mean count of a query with records spread evenly"
    head = (f"`benchmarks/ahead.py`: {what}", *names)
    return table(head, *(line for kind, label in AHEAD.items() for line in _kind_lines(found, edges, kind, label)))


def _kind_lines(found: Figures, edges: list[str], kind: str, label: str) -> list[list[str]]:
    def format_values(name: str, form: str, scale: int = 1) -> list[str]:
        values = [found.get(f"{kind} {low}, {name}") for low in edges]
        return ["" if value is None else format(scale * value, form) for value in values]

    return [[f"{label}: cases (families, degrees, tables, ε)", *format_values("cases", ".0f")],
            ["error of `weighted-residuals` over that of `aim-grem`, geometric mean", *format_values("ratio", ".2f")],
            ["cases in which `aim-grem` is more accurate, %", *format_values("ahead", ".0f", 100)]]  # fmt: skip
