"""Journal of a part of a release: the only code that records a decision on the ledger and draws under it.

A decision is everything that determines some draws: which data are read, what is measured, and the noise. It has a
number among those of its part. Its digest is on the ledger before its noise is drawn, so that a copy of the run
directory cannot draw something else under the same charge. A value is drawn once, stored, and then read from its file:

    values = multiplier · counts + noise(key, label),   label = head ∪ label of the draw.

Values are stored in the form of `value_files`: integers in the units of the draw, with their label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dpscale.base.numerics import Floats, Integers, one_thread
from dpscale.ledger import Ledger
from dpscale.measurement.measurement import add_noise
from dpscale.measurement.value_files import file_name, foreign_values, read_rows, spans, write_values
from dpscale.privacy.draws import Draw
from dpscale.privacy.streams import canonical
from dpscale.storage.files import listed, present


@dataclass(frozen=True, eq=False)
class Journal:
    """Record of the decisions of a part on the ledger.

    Attributes
    ----------
    part : str
        Name of the part.
    release : str
        Release id on the ledger.
    charge : callable
        charge() reserves the cost of the release; a repeated call costs nothing.
    open_ledger : callable
        open_ledger() is a context with the ledger.
    """

    part: str
    release: str
    charge: Callable[[], object] = field(repr=False)
    open_ledger: Callable[[], AbstractContextManager[Ledger]] = field(repr=False)

    def decide(self, number: int, content: Mapping[str, Any]) -> None:
        """Charge the release, then record a decision; its noise may be drawn afterwards.

        Parameters
        ----------
        number : int
            Number of the decision among those of the part.
        content : mapping
            Everything that determines the draws, for canonical JSON.

        Raises
        ------
        BudgetError
            If the ledger refuses the charge, or has another decision with this number.

        Guarantee
        ---------
        Protected: everything that is drawn under the decision.
        Cost: that of the entry of the ledger, which `charge` reserves first; a second decision with this number
            is refused.
        Neighbours: those of the entry.
        Proof: docs/privacy.md, One draw for one charge; tests/audit/test_retry.py.
        """
        self.charge()
        self.record(number, hashlib.sha256(canonical(content)).hexdigest())

    def record(self, number: int, digest: str) -> None:
        """Record the digest of a decision of a release that is charged."""
        with self.open_ledger() as ledger:
            ledger.decide(self.release, self.part, number, digest)

    def is_decided(self, number: int) -> bool:
        """Return whether a decision is on the ledger; without it nothing was drawn under it."""
        with self.open_ledger() as ledger:
            return ledger.is_decided(self.release, self.part, number)


Counts = Callable[[], Sequence[Integers]]
Request = tuple[Draw, Mapping[str, Any]]  # noise of a draw, and its label beside the common fields


@dataclass(frozen=True, eq=False)
class StoredDraws:
    """Values of draws of a part in one file for each decision, drawn once and stored.

    Attributes
    ----------
    folder : Path
        Folder of the value files.
    head : mapping
        Fields that the labels of all draws begin with.
    """

    folder: Path
    head: Mapping[str, Any]

    def path(self, number: int) -> Path | None:
        """Return the value file of a decision; None if it is not drawn."""
        found = [span for span in spans(number, listed(self.folder))] if present(self.folder) else []
        return self.folder / file_name(number, found[0]) if found else None

    def read(self, number: int, requests: Sequence[Request] | None = None) -> list[Floats] | None:
        """Return the stored values of a decision in the units of the counts; None if it is not drawn.

        Raises JobError for values with another label than that of a request, or with another head. Values are stored as
        multiplier · count + noise, so they are divided by the multiplier of the label. Each draw has rows with its
        label.
        """
        if (path := self.path(number)) is None:
            return None
        rows = read_rows(path, self.head, 0, None)
        texts = rows.column("label").unify_dictionaries().combine_chunks()
        labels, values = texts.dictionary.to_pylist(), rows.column("value").to_numpy()
        if requests is not None and labels != [canonical(label).decode() for _, label in requests]:
            raise foreign_values(path)
        codes = texts.indices.to_numpy()
        return [values[codes == code] / _multiplier(label) for code, label in enumerate(labels)]

    def draw(
        self,
        journal: Journal,
        number: int,
        requests: Sequence[Request],
        counts: Counts,
        secret: Callable[[], bytes],
        content: Callable[[Counts], Mapping[str, Any]],
    ) -> list[Floats]:
        """Return the noisy values of a decision, in the units of the counts.

        They are charged, recorded, drawn and stored unless they are stored.

        Parameters
        ----------
        journal : Journal
        number : int
            Number of the decision.
        requests : sequence of (Draw, mapping)
            Noise and label of each draw.
        counts : callable
            counts() returns the exact counts of each draw.
        secret : callable
            secret() returns the noise key.
        content : callable
            Content of the decision, given `counts`.

        Guarantee
        ---------
        Protected: the values: each has the noise of its request, keyed by its label, so that a repetition gives
            the same value.
        Cost: that of the requests, which is on the ledger before the first draw.
        Neighbours: those of the requests.
        Proof: docs/privacy.md, One draw for one charge; tests/audit/test_retry.py.
        """
        if self.path(number) is None:
            once = cache(counts)  # the content and the draw may both need the counts
            journal.decide(number, content(once))
            self.store(number, requests, once(), secret())
        found = self.read(number, requests)
        assert found is not None
        return found

    def store(self, number: int, requests: Sequence[Request], counts: Sequence[Integers], secret: bytes) -> None:
        """Draw the noise of a decision that is on the ledger, and store the values.

        `head` and the label of a request together key its noise.
        """
        with one_thread():
            drawn = [(canonical(label).decode(), add_noise(exact, draw, secret, {**self.head, **label}))
                     for (draw, label), exact in zip(requests, counts, strict=True)]  # fmt: skip
        write_values(self.folder / file_name(number, (0, len(drawn))), self.head, drawn)


def _multiplier(label: str) -> int:
    """Return the multiplier of a draw from its label."""
    fields = json.loads(label)
    return int(fields.get("noise", fields)["multiplier"])
