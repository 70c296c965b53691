"""Measurements of a release on disk: the values of every decision, and the decisions that do not follow from the plan.

    measurements/000-00000000-00004095.parquet, …      measurements/round-001.json, round-002.json, …

A decision is a list of requests, each for the measurement of a block; its number is that of its round. The first
decision follows from the plan; every later one is written before any of its noise is drawn. An existing decision is
never made again, and an existing value is never drawn again.

The values of a decision are in files of successive positions (`value_files.FileLayout`): `sequence` has the request at
each position, `place` the position of each request, and `starts` the number of values before each position. A span is
the first position of a file and its end.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.errors import JobError, TransientError
from dpscale.base.numerics import Floats, Integers
from dpscale.measurement.measurement import Measurements, Part, check_affordable, decision_parts
from dpscale.measurement.value_files import FileLayout, Span, ValueReader, file_name, read_rows, records, spans
from dpscale.plans.measurement_plan import (
    Decision,
    MeasurementPlan,
    MeasurementRequest,
    MeasurementRequests,
    State,
    as_requests,
)
from dpscale.privacy.accounting import Cost
from dpscale.privacy.secret import round_tag, secret_tag
from dpscale.privacy.streams import canonical
from dpscale.storage.files import create, listed, present, read_bytes


@dataclass(frozen=True, eq=False)
class MeasurementStore:
    """Store of the decisions and noisy values of a release.

    Attributes
    ----------
    folder : Path
    release : str
        Release id.
    snapshot : str
        Hash of the input.
    measurement_plan : MeasurementPlan
    rows_per_unit : int
    secret : callable
        Returns the noise key, or None after it is destroyed; the key authenticates stored decisions.
    """

    folder: Path
    release: str
    snapshot: str
    measurement_plan: MeasurementPlan
    rows_per_unit: int = 1
    secret: Callable[[], bytes | None] = lambda: None

    @property
    def spent(self) -> Cost:
        """Privacy cost of the whole release, charged before the first draw."""
        return self.measurement_plan.cost

    @cached_property
    def value_reader(self) -> ValueReader:
        """Reader of the value files, with a cache."""
        return ValueReader(self.head)

    @cached_property
    def head(self) -> dict[str, Any]:
        """Fields that the noise records of all draws begin with."""
        domain = self.measurement_plan.workload.domain
        return {"release": self.release, "snapshot": self.snapshot, "domain": domain.digest}

    def record(self, request: MeasurementRequest) -> dict[str, Any]:
        """Return the canonical record of a measurement: query and noise, never worker or attempt."""
        return {**self.head, **request.label}

    def file_layout(self, decision: Decision) -> FileLayout:
        """Return the file layout of a decision; that of the first decision, which may be large, is cached."""
        if decision is self.measurement_plan.first_decision():
            return self._first
        return FileLayout.of(as_requests(decision.requests))

    @cached_property
    def _first(self) -> FileLayout:
        return FileLayout.of(as_requests(self.measurement_plan.first_decision().requests))

    @cached_property
    def _parsed(self) -> dict[int, tuple[tuple[bytes, str | None], Decision]]:
        """Parsed decisions, each with the hash of its file and the tag of the noise key with which it was checked."""
        return {}

    @cached_property
    def _last(self) -> list[tuple[Decision, bytes]]:
        """Last decision and its canonical text."""
        return []

    @cached_property
    def _costs(self) -> dict[int, tuple[Decision, list[Part]]]:
        """Decisions and the parts of their costs."""
        return {}

    def stored_spans(self, decision: Decision) -> list[Span]:
        """Return the spans of a decision whose values are stored."""
        return spans(decision.round, listed(self.folder))

    def drawn(self, decision: Decision) -> Iterator[tuple[str, int, MeasurementRequest, dict[str, Any]]]:
        """Yield file, position, request and noise record of every draw of a decision, in the order of the files.

        Raises
        ------
        JobError
            If a file has other records than those of the requests, or a measurement is missing.
        """
        requests, sequence, place = decision.requests, self.file_layout(decision).sequence.tolist(), 0
        for first, end in self.stored_spans(decision):
            name = file_name(decision.round, (first, end))
            if first != place:
                raise _edited(f"{name} {'belongs to no decision' if first < place else 'follows a missing file'}")
            # the label of a value must be the record of its request, byte by byte
            for label in records(self.folder / name):
                request = requests[sequence[place]] if place < min(end, len(sequence)) else None
                if request is None or canonical(label) != canonical(self.record(request)):
                    raise _edited(f"{name} has a record that differs from the request")
                yield name, place, request, label
                place += 1
            if place != end:
                raise _edited(f"{name} does not contain the draws in its name")
        if place != len(sequence):
            raise _edited(f"draw {place} of round {decision.round} is missing")

    def check_files(self, decisions: Sequence[Decision]) -> None:
        """Raise JobError for a file of values that belongs to none of these decisions."""
        present_files = {name for name in listed(self.folder) if name.endswith(".parquet")}
        known = set[str]()
        for decision in decisions:
            known.update(file_name(decision.round, span) for span in spans(decision.round, present_files))
        unknown = sorted(present_files - known)
        if unknown:
            raise _edited(f"{unknown[0]} belongs to no decision")

    def missing(self, decision: Decision) -> list[Measurements]:
        """Return the measurements of a decision that have no file yet, those of each file together."""
        layout, requests = self.file_layout(decision), as_requests(decision.requests)
        return [
            Measurements(
                folder=self.folder,
                round=decision.round,
                span=(first, end),
                head=self.head,
                requests=requests.take(layout.sequence[first:end]),
            )
            for first, end in layout.unfilled(self.stored_spans(decision))
        ]

    def values(self, decision: Decision) -> Sequence[Floats]:
        """Return the values of a decision in the units of states and estimates; they are read from disk on access."""
        return _Values(self, decision)

    def record_decision(self, decision: Decision) -> Decision:
        """Store a decision and return the valid one: an existing decision of the same round takes precedence."""
        path, seal = self._path(decision.round), self._seal(self._text(decision))
        if seal is None:
            raise JobError("run directory", "the secret of the release is lost", "the original run directory",
                           "start a new run, which is a new release")  # fmt: skip
        if create(path, json.dumps(decision.to_dict() | {"seal": seal}).encode()):
            return decision
        standing = self._read(decision.round)
        if not standing.fits(decision):  # the shards of this run have other groups
            raise TransientError("measurements", f"another process wrote {path.name} at the same time",
                                 "one process per run", "run again to continue from that file")  # fmt: skip
        return standing

    def digest(self, decision: Decision) -> str:
        """Return the SHA-256 of a decision, by which the ledger identifies it; a function of released values."""
        return hashlib.sha256(self._text(decision)).hexdigest()

    def _text(self, decision: Decision) -> bytes:
        """Return a decision as canonical text; that of the last one is cached."""
        for known, text in self._last:
            if known is decision:
                return text
        text = canonical(decision.to_dict())
        self._last[:] = [(decision, text)]
        return text

    def decisions(self) -> Iterator[Decision]:
        """Yield the decisions in order: the first one from the plan, the others from disk.

        A later decision must have the number of its file and, from the third on, the groups of the one before (`fits`).
        """
        taken: list[Decision] = [self.measurement_plan.first_decision()]
        while present(self._path(len(taken))):
            number, decision = len(taken), self._read(len(taken))
            taken.append(decision)
            consistent = number < 2 or decision.fits(taken[number - 1])
            if decision.round != number or not consistent:
                raise self._foreign(number)
        if len(taken) > 1:  # the cost of the first decision is checked before it is drawn
            self.check_affordable(taken)
        yield from taken

    def check_affordable(self, decisions: Sequence[Decision]) -> None:
        """Raise BudgetError if the decisions cost more than was charged; the cost of each is computed once."""
        check_affordable(decisions, self.spent, self._parts)

    def _parts(self, decision: Decision) -> list[Part]:
        if id(decision) not in self._costs:
            self._costs[id(decision)] = decision, decision_parts(decision, self.rows_per_unit)
        return self._costs[id(decision)][1]

    def replay(self) -> tuple[State | None, Decision | None]:
        """Return the state after all completely measured decisions, and the decision that lacks measurements or None.

        There is no state (None) before the first decision is completely measured, and none without rounds. A state
        follows from the decisions before it and their values, so a decision without all values is the last one.
        """
        taken, state = list(self.decisions()), None
        for decision in taken:
            if self.missing(decision):
                return state, decision
            values = self.values(decision)
            state = state.after(decision, values) if state is not None else self.start(taken[1:])
        return state, None

    def start(self, later: Sequence[Decision] = ()) -> State | None:
        """Return the state after the first decision; None if no rounds follow.

        `later` are the decisions that follow; rounds start with the first of them, if there is one.
        """
        rounds = self.measurement_plan.rounds
        if rounds is None:
            return None
        return rounds.start(self.values(self.measurement_plan.first_decision()), later[0] if later else None)

    def read_span(self, decision: Decision, span: Span, starts: Integers, texts: pa.Array) -> Floats:
        """Return stored numbers at some positions of the layout of a decision, from all files that contain them.

        Parameters
        ----------
        decision : Decision
        span : tuple of int
            First position and end.
        starts : ndarray of int64
            Number of values before each position of the layout, and in total.
        texts : pyarrow StringArray
            Label of each position of the span.

        Raises
        ------
        JobError
            If values are missing, or belong to other measurements or to another release.
        """
        values, position = [], span[0]  # next position to read
        for first, end in self.stored_spans(decision):
            if first <= position < min(end, span[1]):
                last = min(end, span[1])
                skipped, size = int(starts[position] - starts[first]), int(starts[last] - starts[position])
                rows = read_rows(self.folder / file_name(decision.round, (first, end)), self.head, skipped, size)
                if rows.num_rows != size:
                    raise self._missing("that are missing")

                bounds = starts[position : last + 1] - starts[position]
                expected = texts.slice(position - span[0], last - position)
                for rows_of_labels in (bounds[:-1], bounds[1:] - 1):  # first and last value of each measurement
                    labels = rows.column("label").take(pa.array(rows_of_labels)).combine_chunks().cast(pa.string())
                    if not labels.equals(expected):
                        raise self._missing("of other measurements")
                values.append(rows.column("value").to_numpy())
                position = last

        if position < span[1]:
            raise self._missing("that are missing")
        return np.concatenate(values)

    def _missing(self, what: str) -> JobError:
        return JobError("measurements", f"values {what} in {self.folder}", "the original files", "restore them")

    def evidence(self) -> Any:
        """Return all decisions and values, in the form that reconstructions read."""
        return self.measurement_plan.evidence([(decision, self.values(decision)) for decision in self.decisions()])

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:03d}.json"

    def _read(self, number: int) -> Decision:
        """Return a stored decision; an unchanged file is parsed once.

        The key of the cache is the hash of the file and the tag of the secret, because the seal depends on both.
        """
        try:
            content = read_bytes(self._path(number))
        except FileNotFoundError:
            raise self._foreign(number) from None
        secret = self.secret()
        tag = None if secret is None else secret_tag(secret)  # the secret itself must not be kept
        key = hashlib.sha256(content).digest(), tag
        if number in self._parsed:
            parsed_key, decision = self._parsed[number]
            if parsed_key == key:
                return decision
        decision = self._parse(number, content)
        self._parsed[number] = key, decision
        return decision

    def _parse(self, number: int, content: bytes) -> Decision:
        """Return the decision of a file. Raises JobError if it is not one of this run, as the run wrote it.

        The seal, a keyed hash of the other fields, is checked unless the noise key is destroyed.
        """
        try:
            record = dict(json.loads(content))
            seal = record.pop("seal")
            expected, rounds = self._seal(canonical(record)), self.measurement_plan.rounds
            if expected is not None and seal != expected:
                raise ValueError("edited")
            if rounds is None:
                raise ValueError("a plan without rounds has no later decision")
            return rounds.read_decision(record)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError):
            raise self._foreign(number) from None

    def _seal(self, text: bytes) -> str | None:
        """Return the authentication tag of a decision, or None if the secret is destroyed and no noise can be drawn."""
        secret = self.secret()
        return None if secret is None else round_tag(secret, text.decode())

    def _foreign(self, number: int) -> JobError:
        got = f"{self._path(number).name} is not a round of this run"
        return JobError("measurements", got, "the original file", "restore it, or start a new run")


@dataclass(frozen=True, eq=False)
class _Values(Sequence[Floats]):
    """Values of a decision, read from their files on access."""

    released: MeasurementStore
    decision: Decision

    @cached_property
    def _layout(self) -> FileLayout:
        return self.released.file_layout(self.decision)

    @cached_property
    def _spans(self) -> list[Span]:
        return self.released.stored_spans(self.decision)

    def __len__(self) -> int:
        return len(self.decision.requests)

    def __iter__(self) -> Iterator[Floats]:
        """Yield the values in order: of whole files if requests are stored in this order, the others one by one."""
        read = 0  # requests whose values are yielded
        if np.array_equal(self._layout.place, np.arange(len(self))):
            for first, end in self._spans:
                if first <= read < end <= len(self):
                    yield from self._read(read, end)
                    read = end
        yield from (self[index] for index in range(read, len(self)))

    def _read(self, first: int, end: int) -> Iterator[Floats]:
        """Yield the values of successive requests of one file, whose labels are compared at once."""
        starts, positions = self._layout.starts, range(first, end)
        texts = pa.array([self._requests.text(index) for index in positions], pa.string())
        flat = self.released.read_span(self.decision, (first, end), starts, texts)  # one request after the other
        cuts = pairwise((starts[first : end + 1] - starts[first]).tolist())
        for index, (start, stop) in zip(positions, cuts, strict=True):
            request = self._requests[index]
            yield request.estimate(flat[start:stop].reshape(request.block.rows))

    def __getitem__(self, index: Any) -> Any:
        """Return the values of a request as its block estimates them, or of several requests for a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        request = self._requests[index]
        return request.estimate(self.measured(range(len(self))[index]).reshape(request.block.rows))

    def measured(self, index: int) -> Floats:
        """Return the stored numbers of one request, flat, from the file whose span has the place of the request."""
        place, starts = int(self._layout.place[index]), self._layout.starts
        span = self._span(place)
        first, start, end = int(starts[span[0]]), int(starts[place]), int(starts[place + 1])
        path = self.released.folder / file_name(self.decision.round, span)
        return self.released.value_reader.read(path, start - first, end - start, self._requests.text(index))

    @cached_property
    def _requests(self) -> MeasurementRequests:
        return as_requests(self.decision.requests)

    def _span(self, place: int) -> Span:
        """Return the span of the file that contains a position."""
        number = bisect_right(self._spans, (place, len(self._layout.place) + 1)) - 1  # the last that begins before it
        while number >= 0 and self._spans[number][1] <= place:  # an earlier span may be longer
            number -= 1
        if number < 0:
            got = f"values of round {self.decision.round} are missing"
            raise JobError("measurements", got, "the original files", "restore them")
        return self._spans[number]


def _edited(got: str) -> JobError:
    return JobError("measurements", got, "the unmodified files of the run", "restore them")
