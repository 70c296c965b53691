"""Record of every keyed stream that a release draws from, whatever the form and the place of its files.

`recorded_streams` replaces three functions while a release runs in this process: `stream_key`, which gives the record
of a stream; the sampler of noise, whose values depend on the key and the scale; and the words that a selection reads.
What is recorded is a set of pairs: the canonical text of purpose and record, and the SHA-256 of the values drawn.

Frozen draws are the same on every processor and with every version of a library. The id of a release, which follows
from paths, and the digest of the features of a link, which follow from a solver, are replaced in the record of a
stream before its key is computed; the id is replaced for public streams too. Ids of parts end with their names; those
of tables and joins are replaced by that of the run, and those of later periods by one with their number. Gaussian
variances, the weights of periods and converted budgets are rounded to a few bits, so that the last bits of a float in a
plan do not matter. A rounded variance is larger, so that no charge is exceeded.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from dpscale.mechanisms.aim import decision
from dpscale.optimize import time_strategy
from dpscale.privacy import conversion, draws, noise, streams

RELEASE = re.compile(r"seed\d+-[0-9a-f]{24}(?:\.(?:tables|joins)\.[\w-]+|\.2020-(?P<month>\d\d))?")
FEATURES = re.compile(r'"asked":"[0-9a-f]{64}"')
VARIANCE_BITS, WEIGHT_BITS, BUDGET_BITS = 8, 10, 12
DRAWN = ("noise", "selection")


@dataclass
class StreamRecords:
    """Streams of a release.

    Attributes
    ----------
    case : str
        Name in place of the id of the release.
    texts : dict
        Text of each stream by its key.
    drawn : dict
        Bytes of the values drawn from each stream, by its key.
    """

    case: str
    texts: dict[bytes, str] = field(default_factory=dict)
    drawn: dict[bytes, set[bytes]] = field(default_factory=dict)

    def label(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of a stream with the name of the case in place of the release."""
        text = named_releases(self.case, streams.canonical(record).decode())
        return dict(json.loads(FEATURES.sub('"asked":"features"', text)))

    def add(self, key: bytes, values: bytes) -> None:
        """Record values drawn from a stream; keys of continued streams have no record of their own."""
        if key in self.texts:
            self.drawn.setdefault(key, set()).add(values)

    @property
    def lines(self) -> list[list[str]]:
        """Canonical text of each stream and the SHA-256 of what it gave, sorted."""
        return sorted([self.texts[key], hashlib.sha256(values).hexdigest()] for key, all_ in self.drawn.items()
                      for values in all_)  # fmt: skip


def named_releases(case: str, text: str) -> str:
    """Return a text with the name of a case in place of release ids."""

    def name(found: re.Match[str]) -> str:
        number = int(found["month"] or 1)
        return f"golden-{case}" + f"-{number}" * (number > 1)

    return RELEASE.sub(name, text)


@contextmanager
def recorded_streams(case: str) -> Iterator[StreamRecords]:
    """Record all noise and selections that are drawn in this process."""
    found = StreamRecords(case)
    key_of, draw, words = streams.stream_key, noise._draw, streams.KeyedStream.words
    opened = streams.PublicStream.__init__
    restored, converted = draws.restored_gaussian, conversion.gdp_mu
    inside = [0]

    def stream_key(secret: bytes, purpose: str, record: Mapping[str, Any]) -> bytes:
        if purpose not in DRAWN:
            return key_of(secret, purpose, record)
        label = found.label(record)
        key = key_of(secret, purpose, label)
        found.texts[key] = streams.canonical({"purpose": purpose, "record": label}).decode()
        return key

    def draw_noise(stream: Any, table: Any, size: int, *block: int) -> Any:
        inside[0] += 1
        try:
            values = draw(stream, table, size, *block)
        finally:
            inside[0] -= 1
        found.add(stream._key, values.tobytes())
        return values

    def draw_words(stream: Any, count: int) -> Any:
        drawn = words(stream, count)
        if not inside[0]:
            found.add(stream._key, drawn.tobytes())
        return drawn

    def open_public(stream: Any, release: str, purpose: str, *numbers: int) -> None:
        opened(stream, named_releases(case, release), purpose, *numbers)

    def coarse_gaussian(multiplier: int, variance: int, squared_l2: int, rows_per_unit: int) -> Any:
        return restored(multiplier, rounded_up(variance, VARIANCE_BITS), squared_l2, rows_per_unit)

    def coarse_mu(epsilon: float, delta: float) -> float:
        return math.floor(converted(epsilon, delta) * 2**BUDGET_BITS) / 2**BUDGET_BITS

    with (
        mock.patch.object(streams, "stream_key", stream_key),
        mock.patch.object(noise, "_draw", draw_noise),
        mock.patch.object(streams.KeyedStream, "words", draw_words),
        mock.patch.object(streams.PublicStream, "__init__", open_public),
        mock.patch.object(draws, "restored_gaussian", coarse_gaussian),
        mock.patch.object(decision, "restored_gaussian", coarse_gaussian),
        mock.patch.object(conversion, "gdp_mu", coarse_mu),
        mock.patch.object(time_strategy, "BITS", WEIGHT_BITS),
    ):
        yield found


def rounded_up(number: int, bits: int) -> int:
    """Return the least integer of `bits` significant bits that is not smaller."""
    shift = max(number.bit_length() - bits, 0)
    return -(-number >> shift) << shift
