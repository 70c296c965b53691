"""Texts of attributes and cells for readers: titles, labels of the domain file, and bins in words.

Files for machines have the texts of `tables.texts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dpscale.answers.tables import texts
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.domain.words import key_of


def title_of(domain: Domain, name: str) -> str:
    """Return the title of an attribute or a number; its name without one."""
    return domain[name].words.title or name if name in domain.axis_names else name


def titles_of(domain: Domain, names: Sequence[str]) -> tuple[str, ...]:
    """Return the titles of attributes, with the units in which they are stated."""
    units = [domain[name].words.unit for name in names]
    return tuple(title_of(domain, name) + f" ({unit})" * bool(unit) for name, unit in zip(names, units, strict=True))


def words_of(attribute: Attribute) -> list[str]:
    """Return a distinct text for every cell: its label, or a bin in words, or the value."""
    labels = attribute.words.labels
    bins = _bins(attribute.edges) if attribute.kind == "bins" and attribute.listed > 1 else []
    plain = [*bins, *texts(attribute)[len(bins) :]]
    found = [labels.get(key_of(label), text) for label, text in zip(attribute.labels, plain, strict=True)]
    return found if len(set(found)) == len(found) else texts(attribute)


def _bins(edges: Sequence[float]) -> list[str]:
    """Return bins as "25 to 34" between whole edges, which are read as completed units; as "0.5 to under 1" else."""
    if not all(float(edge).is_integer() for edge in edges):
        return [f"{_edge(a)} to under {_edge(b)}" for a, b in pairwise(edges[:-1])] + [
            f"{_edge(edges[-2])} to {_edge(edges[-1])}"
        ]
    # the last whole value of each bin; the last edge belongs to its bin
    lasts = [*(edge - 1 for edge in edges[1:-1]), edges[-1]]
    return [_edge(a) if a == b else f"{_edge(a)} to {_edge(b)}" for a, b in zip(edges, lasts, strict=False)]


def _edge(edge: float) -> str:
    text = f"{edge:,.0f}" if abs(edge) >= 10_000 and float(edge).is_integer() else f"{edge:g}"
    return (text if float(text.replace(",", "")) == edge else repr(edge)).replace("-", "−")
