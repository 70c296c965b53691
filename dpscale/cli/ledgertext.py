"""The ledger's summary as text."""

from __future__ import annotations

from typing import Any


def ledger_text(summary: dict[str, Any]) -> str:
    """Caps, totals and releases of every dataset."""
    lines = [line for name, dataset in summary["datasets"].items() for line in _dataset(name, dataset)]
    return "\n".join(lines) or "no dataset"


def _dataset(name: str, dataset: dict[str, Any]) -> list[str]:
    lines = [f"dataset {name}"]
    for key, value in dataset.items():
        if key != "releases":
            lines.append(f"  {key.replace('_', ' ')}: {_shown(value)}")
    for release in dataset["releases"]:
        lines.append(f"  - {_shown(release)}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_shown(part)}" for key, part in value.items() if part is not None)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
