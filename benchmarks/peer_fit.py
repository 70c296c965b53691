"""A peer of benchmarks/graphical.py: the fit of the same measurements by `mbi` from PyPI, and rows from it.

Runs in another Python with `mbi`; dpscale is not needed there. Prints one line of JSON: seconds of the fit (with
compilation, and a second time without) and of the rows.

    PYTHON benchmarks/peer_fit.py MEASUREMENTS.pickle ROWS.npy [--steps 1000]
"""

from __future__ import annotations

import argparse
import json
import pickle
import time

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)
import jax.numpy as jnp  # noqa: E402
import mbi  # noqa: E402
import numpy as np  # noqa: E402


class AxisQuery:
    """A query with a matrix along each axis of a marginal."""

    def __init__(self, matrices: list[np.ndarray]) -> None:
        self.matrices = matrices

    def __call__(self, factor: mbi.Factor) -> jax.Array:
        table = factor.datavector(flatten=False)
        for axis, matrix in enumerate(self.matrices):
            table = jnp.moveaxis(jnp.tensordot(matrix, table, axes=(1, axis)), 0, axis)
        return table.ravel()


def make_measurement(names: tuple[str, ...], matrices: list[np.ndarray] | None, values: np.ndarray, deviation: float):
    if matrices is None:
        return mbi.LinearMeasurement(values.ravel(), names, deviation)
    return mbi.LinearMeasurement(values.ravel(), names, deviation, query=AxisQuery(matrices))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements")
    parser.add_argument("rows")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    with open(arguments.measurements, "rb") as file:
        sizes, contents, total = pickle.load(file)
    domain = mbi.Domain(list(sizes), list(sizes.values()))
    measured = [make_measurement(*one) for one in contents]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        model = mbi.estimation.MirrorDescent().estimate(domain, measured, iters=arguments.steps)
        jax.block_until_ready(model.potentials)
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    sampled = model.synthetic_data(round(total)).data
    rows = np.stack([np.asarray(sampled[name]) for name in sizes], axis=1)
    drawing = time.perf_counter() - began
    np.save(arguments.rows, rows.astype(np.int32))
    print(json.dumps({"fit": seconds[0], "fit again": seconds[1], "rows": drawing}))


if __name__ == "__main__":
    main()
