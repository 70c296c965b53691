"""Sensitivity of every draw from its integers; only the standard library, included in every bundle with recompute.py.

A draw measures m·K·x + noise on the integers. A unit of k records moves it by at most m Δ k in L2, with Δ² the largest
squared norm of a column of the integer matrix K. Gaussian noise of variance v is charged as one of v − 8, for which
μ² = (m Δ k)²/(v − 8). Laplace noise of scale s costs ε = m Δ₁ k / s, with Δ₁ the largest L1 norm. Over several axes K
is a product, and the norms multiply. A selection is an exponential mechanism whose loss lies in an interval of length
`range`: as Gaussian DP it has μ = 2Φ⁻¹(e^{range/2}/(1 + e^{range/2})).
"""

from __future__ import annotations

import base64
import hashlib
import math
import sys
import zlib
from array import array
from collections import Counter
from fractions import Fraction
from statistics import NormalDist
from typing import Any

SMOOTHING = 8
ABOVE = Fraction(1 + 1e-9)  # tolerance for rounding of floats

Fields = dict[str, Any]
Events = Counter[tuple[str, Fraction]]  # counts by kind and exact cost: μ², ε or ρ


def columns(factor: Fields) -> list[Any]:
    """Return the columns of an integer strategy; one representative for the symmetric kinds identity and center."""
    cells = math.prod(factor["shape"])
    if factor["kind"] == "identity":
        return [[1]]
    if factor["kind"] == "center":
        return [[cells - 1, *[-1] * (cells - 1)]]
    return list(zip(*rows(factor), strict=True))


def rows(factor: Fields) -> list[Any]:
    if "matrix" in factor:
        return factor["matrix"]
    values = array("q", zlib.decompress(base64.b64decode(factor["packed"])))
    if sys.byteorder == "big":
        values.byteswap()
    cells = math.prod(factor["shape"])
    return [values[start : start + cells].tolist() for start in range(0, len(values), cells)]


def norms(factor: Fields) -> tuple[int, int]:
    """Return the largest squared L2 norm and the largest L1 norm of a column."""
    pairs = of_columns(factor) if "levels" not in factor else of_levels(factor)
    return max(one for one, _ in pairs), max(other for _, other in pairs)


def of_columns(factor: Fields) -> list[tuple[int, int]]:
    if "columns" in factor:  # too large for a bundle, which contains the digest and the column norms
        return list(zip(map(int, factor["columns"]["squared"]), map(int, factor["columns"]["absolute"]), strict=True))
    return [(sum(v * v for v in column), sum(map(abs, column))) for column in columns(factor)]


def of_levels(factor: Fields) -> list[tuple[int, int]]:
    """Return norms for a two-level strategy: a cell has the column of its block and its column within the block."""
    top, *inner = factor["levels"]
    blocks, start, pairs, cells = of_columns(top), 0, list[tuple[int, int]](), 0
    for count, level in zip(factor["counts"], inner, strict=True):
        own, within = blocks[start : start + int(count)], norms(level)
        pairs.append((max(one for one, _ in own) + within[0], max(other for _, other in own) + within[1]))
        start, cells = start + int(count), cells + int(count) * math.prod(level["shape"])
    if start != len(blocks) or [cells] != factor["shape"]:
        raise ValueError("the levels do not cover the cells of their strategy")
    return pairs


def digest(factor: Fields) -> str:
    """Return the SHA-256 of a strategy in the records of measurements: of its kind, its shape and its integers."""
    if "columns" in factor:
        return factor["columns"]["sha256"]
    if "levels" in factor:
        content = "".join([factor["kind"], f"({factor['shape'][0]},)", *map(digest, factor["levels"])])
        return hashlib.sha256(content.encode()).hexdigest()
    matrix = b""
    if factor["kind"] not in ("identity", "center"):
        values = array("q", [value for row in rows(factor) for value in row])
        if sys.byteorder == "big":
            values.byteswap()
        matrix = values.tobytes()
    return hashlib.sha256(f"{factor['kind']}{tuple(factor['shape'])}".encode() + matrix).hexdigest()


def check_draws(draws: Fields, factors: dict[str, Fields]) -> tuple[Events, list[str]]:
    """Return the events of the draws, each computed from its integers, and the faults found."""
    faults, events = list[str](), Events()
    norm, known = {key: norms(one) for key, one in factors.items()}, {key: digest(one) for key, one in factors.items()}
    for draw in draws["draws"]:
        squared = math.prod(norm[key][0] for key in draw["factors"])
        absolute = math.prod(norm[key][1] for key in draw["factors"])
        strategy = hashlib.sha256("".join(known[key] for key in draw["factors"]).encode()).hexdigest()
        if [str(squared), str(absolute)] != [draw["squared_l2"], draw["l1"]]:
            faults.append(f"draw {draw['place']} in {draw['file']}: the listed sensitivity is wrong")
        if draw["strategy"] not in (None, strategy):
            faults.append(f"draw {draw['place']} in {draw['file']}: the strategy differs from that in its record")
        if not _possible(draw, draws["rows_per_unit"]):
            faults.append(f"draw {draw['place']} in {draw['file']}: invalid noise")
            continue
        events[event_of(draw, squared, absolute, int(draws["rows_per_unit"]))] += 1
    if len({(draw["file"], draw["place"]) for draw in draws["draws"]}) != len(draws["draws"]):
        faults.append("a draw is listed twice")
    for one in draws["selections"]:
        if int(one["count"]) < 1 or Fraction(one["mu_squared"]) < 0:
            faults.append(f"round {one['round']}: invalid selection")
        kind, cost = ("gaussian", one["mu_squared"]) if one["range"] is None else ("selection", one["range"])
        if kind == "selection" and mu_of_pure(float(Fraction(cost)) / 2) ** 2 > Fraction(one["mu_squared"]) * ABOVE:
            faults.append(f"round {one['round']}: a selection costs more than is listed")
        events[kind, Fraction(cost)] += int(one["count"])
    return events, faults


def mu_of_pure(epsilon: float) -> float:
    """Return the μ of ε-DP as Gaussian DP: its trade-off curve touches that of N(0, 1) against N(μ, 1)."""
    return -2 * NormalDist().inv_cdf(1 / (1 + math.exp(epsilon))) if epsilon < 700 else math.inf


def _possible(draw: Fields, k: str | int) -> bool:
    """Return whether the noise is valid: one of two distributions, with more variance than smoothing uses."""
    one = draw["laplace"] if draw["variance"] is None else draw["variance"]
    both = None not in (draw["laplace"], draw["variance"])
    return (
        not both and int(one) > (SMOOTHING if draw["laplace"] is None else 0) and int(draw["multiplier"]) > 0 < int(k)
    )


def event_of(draw: Fields, squared: int, absolute: int, k: int) -> tuple[str, Fraction]:
    m = int(draw["multiplier"])
    if draw["laplace"] is not None:
        return "laplace", Fraction(m * absolute * k, int(draw["laplace"]))
    return "gaussian", Fraction(m * m * squared * k * k, int(draw["variance"]) - SMOOTHING)
