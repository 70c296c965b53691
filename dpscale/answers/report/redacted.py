"""A job's text as it may be published: paths, addresses and names of places are left out, what it asks stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HIDDEN = "(not shown)"
PLACES = ("path", "domain", "ledger", "file", "via", "scheduler")
TOLD = ("threads", "processes", "synchronous")  # schedulers that are no address


def redacted(content: Any, name: str = "") -> Any:
    """The content of a job file without what tells where things are."""
    if isinstance(content, Mapping):
        return {key: redacted(value, key) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [redacted(one, name) for one in content]
    if isinstance(content, str) and content not in TOLD and (name in PLACES or is_place(content)):
        return HIDDEN
    return content


def is_place(text: str) -> bool:
    """Whether a text looks like a path or an address."""
    return "://" in text or text.startswith(("/", "~", "\\\\", "./", "../")) or text[1:3] in (":\\", ":/")


def public_name(dataset: str | None) -> str:
    """The name of a dataset, unless it is the path that stands for one."""
    return "the dataset" if dataset is None or is_place(dataset) else dataset
