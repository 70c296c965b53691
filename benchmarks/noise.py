"""Draws per second on one core: dpscale's exact noise, OpenDP's exact noise, and numpy's float normal for comparison.

    python benchmarks/noise.py [--quick] [--save]

The process is pinned to one core if the system supports it; each rate is the best of three runs, after a warm-up. The
last lines are the cost of one draw at a new variance, with its set-up. Float noise does not protect as exact noise does
(Mironov 2012); it shows the cost of exactness.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from fractions import Fraction

import base
import numpy as np

from dpscale.privacy.noise import discrete_gaussian, discrete_laplace, wide_gaussian
from dpscale.privacy.streams import open_stream, seeded_secret

SCALES = {"100": 100, "2^30": 2**30}


def rate(draw: Callable[[], object], count: int) -> float:
    """Return the draws per second of `draw`, which makes `count` of them."""
    draw()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        draw()
        best = min(best, time.perf_counter() - start)
    return count / best


def dpscale_rates(count: int) -> dict[str, float]:
    stream = open_stream(seeded_secret(0), "noise", {"benchmark": "noise"})
    rates = {}
    for name, scale in SCALES.items():
        rates[f"dpscale Gaussian, sigma {name}"] = rate(lambda s=scale: discrete_gaussian(stream, s * s, count), count)
        rates[f"dpscale Laplace, scale {name}"] = rate(lambda s=scale: discrete_laplace(stream, s, count), count)
    rates["dpscale Gaussian of 128 bits, sigma 2^85"] = rate(lambda: wide_gaussian(stream, 2**170, count), count)
    rates["dpscale key stream alone, words"] = rate(lambda: stream.words(count), count)
    return rates


def numpy_rates(count: int) -> dict[str, float]:
    generator = np.random.default_rng(0)
    return {"numpy float normal (not exact)": rate(lambda: generator.normal(0.0, 100.0, count), count)}


def opendp_rates(count: int) -> dict[str, float]:
    """Return the rates of OpenDP on a vector (its fastest form) and draw by draw, both with integer values."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    number, zeros = dp.atom_domain(T="i64"), [0] * count
    vector = dp.vector_domain(number)
    rates = {}
    for name, scale in SCALES.items():
        gaussian = dp.m.make_gaussian(vector, dp.l2_distance(T=float), scale=float(scale))
        rates[f"opendp Gaussian on a vector, sigma {name}"] = rate(lambda m=gaussian: m(zeros), count)
        single = dp.m.make_gaussian(number, dp.absolute_distance(T=float), scale=float(scale))
        calls = count // 10
        rates[f"opendp Gaussian call by call, sigma {name}"] = rate(
            lambda m=single, n=calls: [m(0) for _ in range(n)], calls
        )
        laplace = dp.m.make_laplace(vector, dp.l1_distance(T="i64"), scale=float(scale))
        rates[f"opendp Laplace on a vector, scale {name}"] = rate(lambda m=laplace: m(zeros), count)
    return rates


def new_variance_seconds(sigma: int, count: int) -> float:
    """Return the mean time of one draw at a new variance."""
    stream = open_stream(seeded_secret(0), "noise", {"benchmark": "set-up"})
    start = time.perf_counter()
    for i in range(count):
        discrete_gaussian(stream, sigma**2 + Fraction(i + 1, count + 2), 1)
    return (time.perf_counter() - start) / count


def main() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    share = 10 if given.quick else 1
    rates = dpscale_rates(10**7 // share) | numpy_rates(10**7 // share) | opendp_rates(200_000 // share)
    unit = rates["dpscale Gaussian, sigma 2^30"]
    print(f"{'draws per second on one core':<44}{'million/s':>12}{'of dpscale Gaussian 2^30':>28}")
    for name, value in rates.items():
        print(f"{name:<44}{value / 1e6:>12.3f}{value / unit:>28.5f}")
    for name, scale in SCALES.items():
        print(
            f"one draw at a new variance, sigma {name:<10}{1e3 * new_variance_seconds(scale, 500 // share):>12.3f} ms"
        )
    if given.save:
        labels = {
            "sigma 2^30": "dpscale Gaussian, sigma 2^30",
            "sigma 100": "dpscale Gaussian, sigma 100",
            "numpy": "numpy float normal (not exact)",
            "opendp": "opendp Gaussian on a vector, sigma 2^30",
        }
        base.save("noise", {label: rates[name] / unit for label, name in labels.items()})


if __name__ == "__main__":
    main()
