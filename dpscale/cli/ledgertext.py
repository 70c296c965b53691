"""The ledger's summary as text."""

from __future__ import annotations

from typing import Any


def ledger_text(summary: dict[str, Any]) -> str:
    """Caps, totals and releases of every dataset."""
    lines = [line for name, dataset in summary["datasets"].items() for line in _dataset(name, dataset)]
    moved = [f"closed for good: the history moved to {summary['moved_to']}"] if summary["moved_to"] else []
    return "\n".join([*moved, *(lines or ["no dataset"])])


def _dataset(name: str, dataset: dict[str, Any]) -> list[str]:
    return [
        f"dataset {name}",
        *_line("protects", dataset["protects"] or "nobody yet"),
        *_line("currency", dataset["currency"]),
        *_line("cap", _cap(dataset["cap"])),
        *(line for cap in dataset["former_caps"] for line in _line("before", _cap(cap))),
        *_line("spent", _spent(dataset["spent"], dataset["currency"])),
        *_line("reserved", _spent(dataset["reserved"], dataset["currency"])),
        *_line("left", _left(dataset)),
        *(line for note in dataset["notes"] for line in _line("note", note)),
        *_line("head", dataset.get("head", "")),
        *(f"  - {_release(row)}" for row in dataset["releases"]),
    ]


def _line(what: str, text: str) -> list[str]:
    return [f"  {what:<9} {text}"] if text else []


def _cap(cap: dict[str, Any] | None) -> str:
    return f"epsilon {cap['epsilon']:.6g} at delta {cap['delta']:.6g}, since {_day(cap['set_at'])}" if cap else "none"


def _spent(figures: dict[str, Any], currency: str) -> str:
    epsilon = "infinite" if figures["epsilon"] is None else f"{figures['epsilon']:.6g}"
    amount = figures["pure_epsilon" if currency.startswith("pure") else "squared_mu"]
    told = "" if amount is None or currency.startswith("pure") else f" (squared mu {amount:.6g})"
    return f"epsilon {epsilon} at delta {figures['delta']:.6g}{told}"


def _left(dataset: dict[str, Any]) -> str:
    if dataset["remaining"] is None:
        return ""
    unit = "epsilon" if dataset["currency"].startswith("pure") else "squared mu"
    one = f"epsilon {dataset['remaining_epsilon']:.6g} at delta {dataset['cap']['delta']:.6g}"
    return f"{unit} {dataset['remaining']:.6g}: one release of {one}"


def _release(row: dict[str, Any]) -> str:
    own = row["own"]
    epsilon = "infinite" if own["epsilon"] is None else f"{own['epsilon']:.6g}"
    public = ["noise is public: seed"] if row["public"] else []
    figures = f"epsilon {epsilon} at delta {own['delta']:.6g}, squared mu {row['squared_mu']:.6g}"
    return ", ".join([row["release"], figures, *public, row["state"], _day(row["reserved_at"])])


def _day(time: str) -> str:
    return time[:10]
