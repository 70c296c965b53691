"""Limit of the nesting of jobs, domain files and manifests, below that of Python's own recursion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_LEVELS = 50  # mappings and lists inside each other


def is_too_deep(content: Any) -> bool:
    """Return whether mappings and lists in a content have more than `MOST_LEVELS` levels, without recursion."""
    level = [content]
    for _ in range(MOST_LEVELS + 1):
        lists = [one.values() if isinstance(one, Mapping) else one for one in level
                 if isinstance(one, Mapping | list | tuple)]  # fmt: skip
        level = list(
            {id(inner): inner for one in lists for inner in one if isinstance(inner, Mapping | list | tuple)}.values()
        )
        if not level:
            return False

    return True
