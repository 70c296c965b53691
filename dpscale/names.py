"""The nearest known name to one that was not recognised, as a remedy in an error's sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy: the nearest known name, or the names there are."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"there are: {shown}"
