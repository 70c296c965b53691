"""Blocks of docs/benchmarks.md about the accuracy of adaptive estimates and the ideas that were tried."""

from __future__ import annotations

from typing import Any

from rounding import table

Figures = dict[str, Any]
EPSILONS = ("0.1", "1", "10")


def leave_out(found: Figures) -> str:
    head = ("`benchmarks/adaptive.py --leave-out`: error of `aim-grem` over that of commit 111f38d, ± standard error",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    names = [key.removesuffix(", ε = 1, standard error") for key in found if key.endswith(", ε = 1, standard error")]
    rows = [[name, *(f"{found[f'{name}, ε = {e}']:.3f} ± {found[f'{name}, ε = {e}, standard error']:.3f}"
                     for e in EPSILONS)] for name in names]  # fmt: skip
    mean = ["geometric mean", *(f"{found[f'mean, ε = {e}']:.3f}" for e in EPSILONS)]
    worse = ["tables above 1.05 beyond two standard errors", *(f"{found[f'worse, ε = {e}']:.0f}" for e in EPSILONS)]
    largest = ["largest of all tables", *(f"{found[f'largest, ε = {e}']:.3f}" for e in EPSILONS)]
    return table(head, *rows, mean, largest, worse)


def pair_ideas(found: Figures) -> str:
    head = ("`benchmarks/pair_ideas.py`: mean error over that without the idea, six tables",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    kinds = {"components": "leading components of measured pairs", "signs": "random projections",
             "halves": "two groups of each attribute", "groups": "all unmeasured pairs, at low precision"}  # fmt: skip
    rows = []
    for kind, label in kinds.items():
        rows.append([label, *(f"{found[f'{kind}, ε = {e}']:.3f}" for e in EPSILONS)])
        rows.append([f"{label}: exact and without cost", *(f"{found[f'{kind}, free, ε = {e}']:.3f}" for e in EPSILONS)])
    share = f"(Measured for {100 * found['share']:.0f} % of the budget after the rounds.)"
    return f"{table(head, *rows)}\n\n{share}"


def multiple_tables(found: Figures) -> str:
    what = "coverage (width over error; error over that of one table)"
    head = (f"`benchmarks/multiple_tables.py`: 95 % intervals of logistic coefficients, {what}",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    kinds = {"single": "one table, ordinary standard errors", "replicas": "rows of simulated releases",
             "multiple": "rows of perturbed estimates, combining rule"}  # fmt: skip
    names = dict.fromkeys(key.split(", ")[0] for key in found)
    rows = [[f"{name}: {label}", *(f"{found[f'{name}, {e}, {kind}, coverage']:.2f} "
                                   f"({found[f'{name}, {e}, {kind}, width']:.2f}; "
                                   f"{found[f'{name}, {e}, {kind}, error']:.2f})" for e in EPSILONS)]
            for name in names for kind, label in kinds.items()]  # fmt: skip
    return table(head, *rows)


def audits(found: Figures) -> str:
    names = [key.removesuffix(", bound") for key in found if key.endswith(", bound")]
    head = ("`benchmarks/audits.py`: attacks on `aim-grem`, lower bounds at a confidence of 95 % (99.9 % if planted)",
            "bound", "claim", "bound over claim", "check")  # fmt: skip
    rows = [[name, f"{found[f'{name}, bound']:.3f}", f"{found[f'{name}, claim']:.3f}",
             f"{found[f'{name}, bound'] / found[f'{name}, claim']:.3f}", found[f"{name}, result"]]
            for name in names]  # fmt: skip
    return table(head, *rows)
