"""A job as an auditor may read it: settings as they are, paths and addresses left out."""

from __future__ import annotations

import re
from typing import Any

LEFT_OUT = "(left out)"
PLACES = ("path", "domain", "ledger", "file", "via", "run_dir")
ADDRESS = re.compile(r"^(/|~|\.{1,2}/|[A-Za-z]:\\|\\\\)|://")


def redacted(value: Any, key: str = "") -> Any:
    """The value without what tells where things are: by the names of such settings, and by how a place looks."""
    if isinstance(value, dict):
        return {name: redacted(part, name) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part, key) for part in value]
    if isinstance(value, str) and (key in PLACES or ADDRESS.search(value)):
        return LEFT_OUT
    return value
