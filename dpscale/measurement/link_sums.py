"""Measurements of links: integer sums with keyed discrete noise, each in its own file.

The sums are the number of links, the rows by degree of the requested sides, and the three sums of features
(`dpscale.relational`). The first two are one draw each; the three feature sums share one cost. `relational.bounds`
gives the effect of a unit on them. The `cost` of a draw with a squared sensitivity of 1 is its precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Integers
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.privacy.streams import open_stream
from dpscale.storage.files import present, reading, writing

VERSION = 1
SAFE = 1 << 61


@dataclass(frozen=True)
class LinkRecords:
    """Fields common to all noise records of a link, and the folder with its measurements."""

    folder: Path
    release: str
    snapshot: str
    link: str

    def measured(self, name: str) -> NDArray[np.float64] | None:
        """Return the stored noisy sums in units of the query, or None if they are not measured yet."""
        path = self.folder / f"{name}.npy"
        if not present(path):
            return None
        with reading(path) as file:
            return np.asarray(np.load(file, allow_pickle=False))

    def measure(self, name: str, query: str, exact: Integers, draw: GaussianDraw, secret: bytes) -> NDArray[np.float64]:
        """Return the sums with noise, divided by the draw's multiplier; noise is sampled once and then read from disk.

        Parameters
        ----------
        query : text that identifies the sums among those of the same name: a digest of the features that are summed.
        """
        before = self.measured(name)
        if before is not None:
            return before
        values = add_noise(exact, draw, secret, self._record(name, query, draw)) / draw.multiplier
        with writing(self.folder / f"{name}.npy") as file:
            np.save(file, values, allow_pickle=False)
        return values

    def _record(self, name: str, query: str, draw: GaussianDraw) -> Mapping[str, Any]:
        """Return the canonical record that determines the noise."""
        identity = {"link": self.link, "sum": name, "asked": query}
        noise = {**draw.noise_spec, "multiplier": str(draw.multiplier)}
        return {"release": self.release, "snapshot": self.snapshot, "mechanism": f"links/{VERSION}", "round": 0,
                "query": identity, "noise": noise}  # fmt: skip


def add_noise(exact: Integers, draw: GaussianDraw, secret: bytes, record: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return multiplier · exact + noise, rounded once to float64."""
    stream = open_stream(secret, "noise", record)
    if draw.multiplier * int(np.abs(exact).max(initial=0) + 1) < SAFE and draw.fits_words:
        noise = draw.words(stream, exact.size).reshape(exact.shape)
        return np.asarray(exact * draw.multiplier + noise, dtype=np.float64)
    high, low = draw.halves(stream, exact.size)
    wide = (high.astype(object) * 2**64 + low.astype(object)).reshape(exact.shape)
    return np.asarray(exact.astype(object) * draw.multiplier + wide, dtype=np.float64)


def draw_of_precision(precision: Fraction, what: str) -> GaussianDraw:
    """Return integer noise of at most the given precision 1/σ²; its `cost` is the exact precision."""
    return gaussian_draw(1, precision, 1, what)
