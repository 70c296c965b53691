"""What a notebook shows of an object at a glance: its name and a few public facts, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

MOST = 20


def glance(title: str, facts: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """A heading and a table of names and what is said of them, the first ones."""
    pairs = list(facts.items() if isinstance(facts, Mapping) else facts)
    rows = [f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in pairs[:MOST]]
    more = [f"<tr><td colspan='2'>and {len(pairs) - MOST:,} more</td></tr>"] if len(pairs) > MOST else []
    return f"<strong>{escape(title)}</strong><table>{''.join(rows + more)}</table>"
