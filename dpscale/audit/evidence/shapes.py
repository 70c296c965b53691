"""Compare strategies with their shape and with the cells of domain.toml; only the standard library, in every bundle.

The number of cells of an attribute is computed here from its table in domain.toml, without code of the release.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

Fields = dict[str, Any]
EPOCH = date(1970, 1, 1)


def shape_faults(domain: Fields, files: Fields) -> Iterator[str]:
    """Yield strategies whose number of cells differs from that of the attributes in domain.toml."""
    sizes, factors = {name: cells(one) for name, one in domain["attributes"].items()}, files["strategies"]["factors"]
    for draw in files["draws"]["draws"]:
        if unknown := sorted(set(draw["attributes"]) - set(sizes)):
            yield f"draws.json measures {unknown[0]!r}, which is not in domain.toml"
            return
        shape, full = _shape(draw, factors), [sizes[name] for name in draw["attributes"]]
        if shape != full and not is_grouped(draw, factors, domain["attributes"]):
            yield f"the strategy of ({', '.join(draw['attributes'])}) does not have the shape of its attributes"
            return


def _shape(draw: Fields, factors: Mapping[str, Fields]) -> list[int]:
    return [size for name in draw["factors"] for size in factors[name]["shape"]]


def is_grouped(draw: Fields, factors: Mapping[str, Fields], attributes: Mapping[str, Fields]) -> bool:
    """Return whether a draw of a later round is over groups of cells, each cell in one: the shape is smaller."""
    shape, full = _shape(draw, factors), [cells(attributes[name]) for name in draw["attributes"]]
    smaller = len(shape) == len(full) and all(one <= most for one, most in zip(shape, full, strict=True))
    return smaller and shape != full and int(draw["round"]) > 0


def cells(one: Fields) -> int:
    """Return the number of cells of an attribute in domain.toml, with those for outside values and nulls."""
    foreign = one.get("unparsable") or ("reject" if one["outside"] == "clip" else one["outside"])
    return _listed(one) + ("category" in (one["outside"], foreign)) + (one["nulls"] == "category")


def _listed(one: Fields) -> int:
    kind = one["kind"]
    if "values" in one or "map" in one:
        return len(one["values"] if "values" in one else one["map"])
    if kind == "date":
        return _period(one["by"], one["high"]) - _period(one["by"], one["low"]) + 1
    counts = {"boolean": lambda: 2, "coded": lambda: int(one["size"]), "bins": lambda: len(one["edges"]) - 1,
              "integer": lambda: (one["high"] - one["low"]) // one.get("round", 1) + 1}  # fmt: skip
    return counts[kind]()


def _period(by: str, name: str | int) -> int:
    """Return the number of a calendar period from its name."""
    text = str(name)
    if by == "day":
        return (date.fromisoformat(text) - EPOCH).days
    if by == "week":
        year, week = text.split("-W")
        return ((date.fromisocalendar(int(year), int(week), 1) - EPOCH).days + 3) // 7
    if by == "year":
        return int(text)
    year, part = re.split("-Q?", text)
    return int(year) * (4 if by == "quarter" else 12) + int(part)


def strategy_faults(files: Fields) -> Iterator[str]:
    """Yield strategies whose entries contradict their shape."""
    for name, factor in files["strategies"]["factors"].items():
        if fault := _misshapen(factor):
            yield f"strategy {name} {fault}"


def _misshapen(factor: Fields) -> str:
    count = math.prod(factor["shape"])
    if not factor["shape"] or min(factor["shape"]) < 1:
        return "has no cells"
    if "columns" in factor:
        squared, absolute = (list(map(int, factor["columns"][name])) for name in ("squared", "absolute"))
        if len(squared) != count or len(absolute) != count:
            return f"has norms of {len(squared)} columns for {count} cells"
        if any(not 0 <= a <= s <= a * a for s, a in zip(squared, absolute, strict=True)):
            return "has norms that are impossible for columns of integers"
    if "matrix" in factor and any(len(row) != count for row in factor["matrix"]):
        return f"has rows that do not have {count} cells"
    if "levels" in factor:
        return next((fault for level in factor["levels"] if (fault := _misshapen(level))), "")
    known = ("matrix", "packed", "columns")
    return "" if factor["kind"] in ("identity", "center") or any(one in factor for one in known) else "has no entries"
