"""Recompute the cost of a growing table: python period_costs.py [FOLDER]; exit code 1 if a claim is wrong.

The script uses only the standard library and is part of the bundle of a growing table; recompute.py runs it too.
Period t measures K Σ_s R[t, s] x_s + noise, where x_s are the counts of the records of period s and time.json has the
rows of the lower-triangular integer matrix R. Every released period has the draws of one table, which cost c to the
rows of a unit in one period at weight 1. A unit with rows in at most k periods changes all measurements together by at
most

    squared μ    c times the largest Σ |(RᵀR)[s, s']| over the pairs s, s' of a set of k periods
    Laplace ε    c times the sum of the k largest Σ_t |R[t, s]|

A row, and a unit in one period, have k = 1. If there are too many sets, the k largest of the bounds
|X[s, s]| + (sum of the k − 1 largest |X[s, s']|), X = RᵀR, are added. The ledger charges the whole horizon once.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence.crosscheck import GROWING, own_entry, tomllib
    from dpscale.audit.evidence.sensitivities import Events, check_draws, components, label
    from dpscale.audit.evidence.shapes import period_number
else:  # in a bundle, in which no files may be created
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parent))
    from crosscheck import GROWING, own_entry, tomllib
    from sensitivities import Events, check_draws, components, label
    from shapes import period_number

Fields = dict[str, Any]
Rows = Sequence[Sequence[int]]
TIME = "time.json"
MOST_SETS = 200_000  # sets of periods over which the largest cost is computed exactly
LENGTHS = {4: "year", 7: "month", 8: "week", 10: "day"}  # of the names of periods, by characters


def largest_cost(rows: Rows, periods: int) -> int:
    """Return the largest Σ |(RᵀR)[s, s']| over sets of k periods, or an upper bound of it if there are many sets."""
    number = len(rows)
    columns = [[rows[t][s] for t in range(s, number)] for s in range(number)]
    if periods == 1:
        return max(sum(value * value for value in own) for own in columns)
    grams = [[0] * number for _ in rows]
    for s, own in enumerate(columns):
        for other in range(s + 1):  # the columns share the entries of the later one
            grams[s][other] = grams[other][s] = abs(sum(map(mul, own, columns[other][s - other :])))
    if periods >= number:
        return sum(map(sum, grams))
    others = [sorted((value for at, value in enumerate(own) if at != s), reverse=True) for s, own in enumerate(grams)]
    bounds = sorted((grams[s][s] + sum(others[s][: periods - 1]) for s in range(number)), reverse=True)
    if math.comb(number, periods) > MOST_SETS:
        return sum(bounds[:periods])
    return max(sum(grams[s][other] for s in own for other in own) for own in combinations(range(number), periods))


def largest_column_sums(rows: Rows, periods: int) -> int:
    """Return the sum of the k largest Σ_t |R[t, s]|."""
    number = len(rows)
    sums = sorted((sum(abs(rows[t][s]) for t in range(s, number)) for s in range(number)), reverse=True)
    return sum(sums[:periods])


def factor_of(time: Fields) -> int:
    """Return the cost of the horizon in units of one period's; R must be lower-triangular, with integers."""
    rows, periods = time["rows"], time["periods_per_unit"]
    whole = all(isinstance(value, int) and not isinstance(value, bool) for row in rows for value in (*row, periods))
    if not whole or not rows or periods < 1 or any(len(row) != t + 1 or row[t] <= 0 for t, row in enumerate(rows)):
        raise ValueError("no integer matrix, or no number of periods")
    return (largest_column_sums if time["noise"] == "laplace" else largest_cost)(rows, periods)


def horizon_events(folder: str | Path, draws: Fields, factors: dict[str, Fields]) -> tuple[Events, list[str]]:
    """Return the events of the whole horizon, and faults; every period must have the draws of the first one."""
    time = json.loads((Path(folder) / TIME).read_text("utf-8"))
    first, *others = components(draws)
    events, found = check_draws({"components": [first]}, factors)
    found += [f"{label(one)} has other draws than {label(first)}" for one in others if _drawn(one) != _drawn(first)]
    if first["selections"] or first.get("delta"):
        found.append(f"{label(first)} has selections or an additive δ, which have no cost over a horizon")
    noise = "laplace" if time["noise"] == "laplace" else "gaussian"
    if any(kind != noise for kind, _ in events):
        found.append(f"{TIME} has another noise than draws.json")
    factor = factor_of(time)
    if draws["time"]["factor"] != str(factor):
        found.append(f"the horizon costs {factor} times one period, but {draws['time']['factor']} is stated")
    return Events({(kind, cost * factor): count for (kind, cost), count in events.items()}), found


def length_of(label: str) -> str | None:
    """Return the length of the period that a label names: 2026, 2026-Q1, 2026-01, 2026-W05 or 2026-01-31."""
    return "quarter" if "Q" in label else LENGTHS.get(len(label))


def _drawn(component: Fields) -> Fields:
    """Return all of a component but its name and folder."""
    return {name: value for name, value in component.items() if name not in ("name", "folder")}


def faults(folder: str | Path) -> list[str]:
    """Return contradictions of the periods to plan, job and ledger; none if they agree."""
    names = ("draws", "ledger", "run-files", "versions")
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8")) for name in names}
    content = (Path(folder) / TIME).read_bytes()
    found = [*_period_faults(json.loads(content), files)]
    if files["run-files"].get(f"plan/{TIME}") != hashlib.sha256(content).hexdigest():
        found.append(f"{TIME} differs from the plan of the run")
    if files["versions"]["format"] != GROWING:
        found.append(f"{TIME} is in a bundle of another format")
    if tomllib is not None:
        job = tomllib.loads((Path(folder) / "job.toml").read_text("utf-8"))
        found += _job_faults(job, json.loads(content), files)
    return found


def _period_faults(time: Fields, files: Fields) -> Iterator[str]:
    """Yield a fault if the periods are not those of the ledger's entry, one after the other."""
    draws, periods = files["draws"], own_entry(files).get("periods") or []
    stated = draws["time"]
    if stated["periods"] != periods or len(periods) != len(time["rows"]):
        yield "draws.json, time.json and the ledger's entry have different periods"
        return
    if stated["periods_per_unit"] != time["periods_per_unit"]:
        yield "draws.json and time.json have different numbers of periods of a unit"
    by = length_of(periods[0])
    numbers = [period_number(str(by), one) for one in periods if by is not None and length_of(one) == by]
    if numbers != [numbers[0] + place for place in range(len(periods))]:
        yield "the periods of the ledger's entry do not follow each other"
    released = [one["name"] for one in components(draws)]
    if not released or released != periods[: len(released)]:
        yield "draws.json lists a period twice, or periods that are not the first ones of the ledger's entry"


def _job_faults(job: Fields, time: Fields, files: Fields) -> Iterator[str]:
    """Yield differences of the promise and of the horizon from the job."""
    row, settings, data = own_entry(files), job.get("time", {}), job.get("data", {})
    periods, most = row.get("periods") or [], settings.get("max_periods_per_unit")
    if not data.get("period"):
        yield "job.toml names no period, but draws.json lists periods"
    if time["periods_per_unit"] != (most or 1):
        yield f"job.toml and {TIME} have different numbers of periods of a unit"
    spanned = data.get("privacy_unit") is not None and most is None
    if row.get("span") != (length_of(periods[0]) if spanned and periods else None):
        yield "job.toml and the ledger's entry promise different periods of a unit"
    named = settings.get("horizon", len(periods)), [str(settings["start"])] if "start" in settings else periods[:1]
    if named != (len(periods), periods[:1]):
        yield "job.toml and the ledger's entry have different periods"
    privacy = job["privacy"]
    pure = privacy.get("epsilon") is not None and privacy.get("delta") is None
    if (time["noise"] == "laplace") != pure:
        yield f"job.toml and {TIME} have different noise"


def main(folder: str | Path) -> int:
    draws = json.loads((Path(folder) / "draws.json").read_text("utf-8"))
    factors = json.loads((Path(folder) / "strategies.json").read_text("utf-8"))["factors"]
    events, found = horizon_events(folder, draws, factors)
    found += faults(folder)
    first = components(draws)[0]
    cost = sum((one * count for (_, one), count in events.items()), Fraction(0))
    print(f"{len(components(draws))} of {len(draws['time']['periods'])} periods are released, from {first['name']}")
    print(f"the horizon costs {draws['time']['factor']} times one period: {float(cost):.9g}")
    print(*(f"FAULT: {one}" for one in found) if found else ["all claims about periods are correct"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
