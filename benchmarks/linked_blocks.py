"""Block of docs/benchmarks.md with errors of links between tables."""

from __future__ import annotations

from typing import Any

from rounding import significant, table

Figures = dict[str, Any]


def relational(found: Figures) -> str:
    """Return the errors of sampled links; of the published mechanism on MovieLens only."""
    names = {"100K": "MovieLens 100K", "1M": "MovieLens 1M, a tenth", "order": "Berka, orders of accounts",
             "order, add/remove": "neighbours differ in an account", "trans": "Berka, transactions of accounts",
             "trans, add/remove": "neighbours differ in an account"}  # fmt: skip
    what = "mean total variation of 3-way cross marginals of sampled links, δ = 10⁻⁵, 10 seeds (largest of one)"
    head = [f"`benchmarks/relational.py`: {what}", *(f"ε = {e}" for e in LINK_EPSILONS), "random links", "seconds"]
    lines = []
    for name, label in names.items():
        for kind in ("ours", "published"):
            if f"{name}, {kind}, seconds" in found:
                lines.append(_links(found, f"{name}, {kind}", f"{label}, {KINDS[kind]}", found[f"{name}, random"]))
    return f"{table(head, *lines)}\n\n{_beyond(found)}"


def _beyond(found: Figures) -> str:
    """Return the errors of siblings, chains and whole databases."""
    rows = [
        ("pairs of siblings, Berka's orders, not measured", "siblings, without"),
        ("the same, measured", "siblings, with"),
        ("3-way cross marginals of those links, siblings not measured", "siblings, without, cross"),
        ("the same, measured", "siblings, with, cross"),
        ("user × director over synthetic films", "chain, without"),
        ("the same, with the degree of a film as an attribute (`counts`)", "chain, with"),
        ("Berka's accounts and orders, both synthetic", "whole, order, ours"),
        ("the same tables with random links", "whole, order, apart"),
        ("MovieLens 100K, both tables synthetic", "whole, 100K, ours"),
        ("the same tables with random links", "whole, 100K, apart"),
    ]
    head = ["`benchmarks/relational.py --more 3`: mean total variation, 3 seeds", *(f"ε = {e}" for e in MORE_EPSILONS)]
    return table(head, *([label, *(f"{found[f'{key}, {e}']:.4f}" for e in MORE_EPSILONS)] for label, key in rows))


KINDS = {"ours": "dpscale", "published": "published mechanism"}
MORE_EPSILONS = ("1", "2", "4")


LINK_EPSILONS = ("0.25", "0.5", "1", "2", "4")


def _links(found: Figures, key: str, label: str, random: float) -> list[str]:
    cells = [f"{found[f'{key}, {e}']:.4f}" for e in LINK_EPSILONS]
    largest = [found.get(f"{key}, {e}, largest") for e in LINK_EPSILONS]
    cells = [cell if most is None else f"{cell} ({most:.4f})" for cell, most in zip(cells, largest, strict=True)]
    return [label, *cells, f"{random:.4f}", significant(found[f"{key}, seconds"], 2)]
