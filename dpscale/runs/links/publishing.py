"""Published loop on exact links; every selection is stored and recorded on the ledger before its noise is drawn.

A selection uses exact counts: integer distances, the exponential mechanism and a keyed stream. The ledger first records
the inputs of the selection (earlier rounds and the rows of both sides). The selection is stored in `round-NN.json`, and
the ledger records its digest. A copy of the directory therefore cannot select or draw differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.measurement.adaptive import distance
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.selection import draw_index, scale_for
from dpscale.privacy.streams import PublicStream, open_stream
from dpscale.relational.published import Fit, Rounds, moved_entries, run_rounds
from dpscale.relational.rounding import Cross
from dpscale.runs.links.link_draws import LinkDraws
from dpscale.storage.files import present, read_bytes, writing


@dataclass(frozen=True, eq=False)
class PublishedLoop:
    """Published loop for one link.

    Attributes
    ----------
    draws : LinkDraws
    rounds : Rounds
    amount : Fraction
        Squared μ.
    relation : str
    moved : int
        Number of links that a neighbour changes.
    exact : callable
        exact() returns the entries of all cross marginals.
    sign : callable
        sign(records) returns the content of a decision with some records.
    """

    draws: LinkDraws
    rounds: Rounds
    amount: Fraction
    relation: str
    moved: int
    exact: Callable[[], Integers] = field(repr=False)
    sign: Callable[[list[str]], dict[str, Any]] = field(repr=False)

    def run_rounds(self, fit: Fit) -> Floats:
        """Return the fitted numbers b of links for every pair of profiles (distinct rows), shape (parents, children).

        Each round selects the marginals that the estimates fit worst, measures them with noise, and fits b again.
        """
        cross = Cross.of(fit.u, fit.v, self.rounds.order)
        return run_rounds(
            fit,
            self.rounds,
            cross,
            lambda number, estimates, left, count: self._chosen(cross, number, estimates, left, count),
            lambda number, chosen: self._measured(cross, number, chosen),
            PublicStream(str(self.draws.values.head["release"]), f"slices {self.draws.name}"),
        )

    def _chosen(self, cross: Cross, number: int, estimates: Floats, left: Sequence[int], count: int) -> list[int]:
        """Return the marginals of round `number`: the stored ones, or `count` that are selected now and stored."""
        path = self._stored_path(number)
        if not present(path):
            self.draws.journal.decide(self.draws.number(f"selection-{number:02d}"), self.sign([self._before(number)]))
            drawn = self._drawn(cross, number, estimates, left, count)
            with writing(path) as file:
                file.write(json.dumps(drawn).encode())
        return [int(k) for k in json.loads(read_bytes(path))]

    def _drawn(self, cross: Cross, number: int, estimates: Floats, left: Sequence[int], count: int) -> list[int]:
        """Return `count` marginals selected by successive exponential mechanisms among those that are `left`.

        The score of a marginal is the distance of its exact entries from the estimated ones.

        Marginals are chosen one after the other without replacement. The sensitivity of a distance is the number of
        entries that one moved link changes, times the links that a neighbour moves.
        """
        exact = self.exact()
        scores = {k: distance(exact[cross.entries(k)], estimates[cross.entries(k)]) for k in left}
        of_selection, _ = self.rounds.costs(self.amount)
        scale = scale_for(of_selection, SCALE * moved_entries(self.relation) * self.moved)
        chosen: list[int] = []
        for rank in range(count):
            others = [k for k in left if k not in chosen]
            stream = open_stream(self.draws.secret(), "selection", self._record(number, rank))
            chosen.append(others[draw_index(stream, [scores[k] for k in others], scale)])
        return chosen

    def _record(self, number: int, rank: int) -> dict[str, object]:
        return {**self.draws.values.head, "mechanism": "published/1", "link": self.draws.name, "round": number,
                "rank": rank}  # fmt: skip

    def _measured(self, cross: Cross, number: int, chosen: Sequence[int]) -> Floats:
        """Return the noisy entries of the chosen marginals, at their places among the entries of all; others are 0.

        `costs` divides the budget of a round between its selection and its noise.
        """
        name, noisy = f"round-{number:02d}", np.zeros(cross.size)
        _, of_noise = self.rounds.costs(self.amount)
        draw = gaussian_draw(moved_entries(self.relation), of_noise, self.moved, f"link {self.draws.name}")

        def entries() -> Integers:
            exact = self.exact()
            return np.concatenate([exact[cross.entries(k)] for k in chosen])

        selection = hashlib.sha256(read_bytes(self._stored_path(number))).hexdigest()
        drawn = self.draws.draw(name, json.dumps(list(chosen)), draw, entries, lambda _: self.sign([selection]))
        start = 0
        for k in chosen:
            place = cross.entries(k)
            length = place.stop - place.start
            noisy[place] = drawn[start : start + length]
            start += length
        return noisy

    def _before(self, number: int) -> str:
        """Return a digest of all earlier rounds, which determine the current estimates and the scores of this round."""
        files = list[Path]()
        for earlier in range(number):
            values = self.draws.values.path(self.draws.number(f"round-{earlier:02d}"))
            assert values is not None
            files += [self._stored_path(earlier), values]
        return hashlib.sha256(b"".join(hashlib.sha256(read_bytes(file)).digest() for file in files)).hexdigest()

    def _stored_path(self, number: int) -> Path:
        return self.draws.folder / f"round-{number:02d}.json"
