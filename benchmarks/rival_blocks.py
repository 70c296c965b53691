"""The block of docs/benchmarks.md that compares `aim-grem` with other packages."""

from __future__ import annotations

from typing import Any

from rounding import fine, significant, table

Figures = dict[str, Any]
OURS, ROWS = "dpscale aim-grem", "dpscale aim-grem, rows"
LABELS = {
    OURS: "`aim-grem`", ROWS: "`aim-grem`, rows", "mbi AIM": "`mbi`: AIM", "mbi MST": "MST",
    "mbi mixture": "mixture of products", "dpsynth SWIFT": "`dpsynth`: SWIFT", "dpmm AIM": "`dpmm`: AIM",
    "dpmm MST": "MST", "dpmm PrivBayes": "PrivBayes",
}  # fmt: skip


def rivals(found: Figures) -> str:
    """Return the table of all cells, the limits, and where a rival is ahead."""
    cells = list(dict.fromkeys(key.removeprefix(f"{OURS}, ") for key in found
                               if key.startswith(f"{OURS}, ") and not key.startswith(ROWS)
                               and not key.endswith((", seconds", ", seeds"))))  # fmt: skip
    names = [name for name in LABELS if any(key.startswith(f"{name}, ") for key in found)]
    head = ("`benchmarks/adaptive.py --rivals`: mean L1 error / N (seeds), CPU seconds", "ε",
            *(LABELS[name] for name in names))  # fmt: skip
    lines = [[*cell.split(", "), *(outcome(found, f"{name}, {cell}") for name in names)] for cell in cells]
    return f"{table(head, *lines)}\n\n{limits(found)} {ahead(found, cells, names)}"


def outcome(found: Figures, key: str) -> str:
    """Return error and seconds of a cell, or how its runs ended."""
    value = found.get(key, "")
    if isinstance(value, str):
        return value
    return f"{fine(value)} ({found[f'{key}, seeds']:g}), {significant(found[f'{key}, seconds'], 2)} s"


def limits(found: Figures) -> str:
    """Return the sentences about the limits and the outcomes that occur in the table."""
    outcomes = {
        "not run": '"Not run": over a limit at a smaller ε.',
        "not reached": '"Not reached": the whole run was stopped before.',
        "failed": '"Failed": the package raised an error.',
    }
    notes = [note for word, note in outcomes.items() if word in found.values()]
    return (f"Each run is limited to {found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB. "
            f"A run that takes more than {found['seconds of a repeated run']:g} s is not repeated; all runs took "
            f"{found['CPU minutes']:.0f} CPU minutes. "
            "SWIFT has 2,500 steps instead of 10,000; step size and candidates of the mixture were chosen on nursery "
            "at ε = 1 with the first seed; other options are defaults or those of the papers. Other programs shared "
            "the cores. "
            + " ".join(notes)).strip()  # fmt: skip


def ahead(found: Figures, cells: list[str], names: list[str]) -> str:
    """Return the sentence that says where a rival has a smaller error than the estimates of `aim-grem`."""
    others = [name for name in names if name not in (OURS, ROWS)]
    done, better, least = 0, [], []
    for cell in cells:
        errors = {name: found[f"{name}, {cell}"] for name in others
                  if not isinstance(found.get(f"{name}, {cell}", ""), str)}  # fmt: skip
        if not errors:
            continue
        done += 1
        best, ours = min(errors, key=lambda name: errors[name]), found[f"{OURS}, {cell}"]
        least.append(errors[best] / ours)
        if errors[best] < ours:
            where, epsilon = cell.split(", ")
            better.append(f"{where} at ε = {epsilon} (`{best.split()[0]}` {best.split()[1]}: {errors[best] / ours:.2f} "
                          f"times the error)")  # fmt: skip
    if not done:
        return "No run of a rival ended within the limits."
    start = (f"The best rival has {min(least):.2f} to {max(least):.2f} times the error of the estimates of `aim-grem` "
             f"in the {done} of {len(cells)} cells in which a rival ends within the limits; ")  # fmt: skip
    if not better:
        return f"{start}a rival is ahead in none."
    return f"{start}a rival is ahead in {len(better)}: {'; '.join(better)}."


def wide_rivals(found: Figures) -> str:
    """Return the mechanisms that ended on generated tables of many attributes."""
    head = ("`benchmarks/wide_rivals.py`: 66 attributes, mean L1 error / N (seeds), CPU seconds",
            "table", "ε", "result")  # fmt: skip
    cells = [key.removesuffix(", seconds") for key in found if key.endswith(", seconds")]
    lines = [[LABELS[(own := cell.rsplit(", ", 2))[0]], *own[1:], outcome(found, cell)] for cell in cells]
    limits = f"{found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB"
    repeated = f"{found['seconds of a repeated run']:g} CPU seconds"
    limit = (f"Each run is limited to {limits}; those of up to {repeated} are repeated. All took "
             f"{found['CPU minutes']:.1f} CPU minutes.")  # fmt: skip
    return f"{table(head, *lines)}\n\n{limit}"
