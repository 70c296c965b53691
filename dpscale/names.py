"""Names: those of a set of attributes, and the nearest known one to a name that was not recognised."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

AttributeSet = tuple[str, ...]  # what is shared spells it in the domain's order


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy: the nearest known name, or the names there are."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"there are: {shown}"
