"""The README's block of links between tables."""

from __future__ import annotations

from typing import Any

from rounding import significant, table

Figures = dict[str, Any]


def relational(found: Figures) -> str:
    """Ours with the largest of a seed; what is published on MovieLens, where it takes seconds."""
    names = {"100K": "MovieLens 100K", "1M": "MovieLens 1M, a tenth", "order": "Berka, orders of accounts",
             "order, add/remove": "an account comes or goes", "trans": "Berka, transactions of accounts",
             "trans, add/remove": "an account comes or goes"}  # fmt: skip
    what = "mean total variation of 3-way cross marginals of drawn links, δ = 10⁻⁵, 10 seeds (largest of one)"
    head = [f"`benchmarks/relational.py`: {what}", *(f"ε = {e}" for e in LINK_EPSILONS), "random links", "seconds"]
    lines = []
    for name, label in names.items():
        for kind in ("ours", "published"):
            if f"{name}, {kind}, seconds" in found:
                lines.append(_links(found, f"{name}, {kind}", f"{label}, {kind}", found[f"{name}, random"]))
    return f"{table(head, *lines)}\n\n{_beyond(found)}"


def _beyond(found: Figures) -> str:
    """Siblings, chains and whole databases."""
    rows = [
        ("pairs of siblings, Berka's orders, not measured", "siblings, without"),
        ("the same, measured", "siblings, with"),
        ("3-way cross marginals of those links, siblings not measured", "siblings, without, cross"),
        ("the same, measured", "siblings, with, cross"),
        ("user × director over synthetic films", "chain, without"),
        ("the same, a film's ratings counted (`counts`)", "chain, with"),
        ("Berka's accounts and orders, both synthetic", "whole, order, ours"),
        ("the same apart, with random links", "whole, order, apart"),
        ("MovieLens 100K, both tables synthetic", "whole, 100K, ours"),
        ("the same apart, with random links", "whole, 100K, apart"),
    ]
    head = ["`benchmarks/relational.py --more 3`: mean total variation, 3 seeds", *(f"ε = {e}" for e in MORE_EPSILONS)]
    return table(head, *([label, *(f"{found[f'{key}, {e}']:.4f}" for e in MORE_EPSILONS)] for label, key in rows))


MORE_EPSILONS = ("1", "2", "4")


LINK_EPSILONS = ("0.25", "0.5", "1", "2", "4")


def _links(found: Figures, key: str, label: str, random: float) -> list[str]:
    cells = [f"{found[f'{key}, {e}']:.4f}" for e in LINK_EPSILONS]
    largest = [found.get(f"{key}, {e}, largest") for e in LINK_EPSILONS]
    cells = [cell if most is None else f"{cell} ({most:.4f})" for cell, most in zip(cells, largest, strict=True)]
    return [label, *cells, f"{random:.4f}", significant(found[f"{key}, seconds"], 2)]
