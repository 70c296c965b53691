"""Draws of a link, by name: each is a decision of the link's part, drawn once and stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpscale.base.numerics import Floats, Integers
from dpscale.measurement.journal import Journal, StoredDraws
from dpscale.privacy.draws import GaussianDraw
from dpscale.runs.linked_tables import LinkedTables

SUMS = ("u", "v", "both")
ROUNDS = "rounds.json"  # number of rounds of a published loop that the job leaves open
VERSION = 1  # of the mechanism in noise labels: another number gives other noise
# draws of a link, and in the first measurement of a table, by their numbers
NAMES = ("links", "degrees", "siblings", "steps", "histories", *SUMS, "rows", "ones")


@dataclass(frozen=True, eq=False)
class LinkDraws:
    """Draws of a link, or of a table or a histogram of degrees in the first measurement.

    Attributes
    ----------
    values : StoredDraws
    name : str
        Name in the labels of noise.
    journal : Journal
    secret : callable
        secret() returns the noise key.
    """

    values: StoredDraws
    name: str
    journal: Journal = field(repr=False)
    secret: Callable[[], bytes] = field(repr=False)

    @property
    def folder(self) -> Path:
        return self.values.folder

    @staticmethod
    def number(name: str) -> int:
        """Return the number of a draw: selections and values of the rounds of a published loop follow the others.

        NAMES are the draws with a fixed number. "KIND-NUMBER" is a draw of a round: the selection of a round precedes
        its values ("round").
        """
        if name in NAMES:
            return NAMES.index(name)
        kind, _, round_number = name.partition("-")
        return len(NAMES) + 2 * int(round_number) + (kind == "round")

    def has(self, name: str) -> bool:
        """Return whether a draw is stored."""
        return self.values.path(self.number(name)) is not None

    def measured(self, name: str) -> Floats | None:
        """Return the stored noisy sums in units of the query, or None if they are not measured yet."""
        found = self.values.read(self.number(name))
        return None if found is None else found[0]

    def draw(
        self,
        name: str,
        query: str,
        draw: GaussianDraw,
        counts: Callable[[], Integers],
        content: Callable[[Callable[[], Integers]], Mapping[str, Any]],
    ) -> Floats:
        """Return noisy sums in units of the query, drawn once.

        Parameters
        ----------
        name : str
            Name of the draw.
        query : str
            Text that identifies the sums among those of the same name: a digest of the features that are summed.
        draw : GaussianDraw
        counts : callable
            counts() returns the exact sums.
        content : callable
            Content of the decision, given `counts`.
        """
        request = draw, self.label(name, query, draw)
        # one draw of several in general, hence lists of requests, of exact sums and of results
        [noisy] = self.values.draw(self.journal, self.number(name), [request], lambda: [counts()], self.secret,
                                   lambda exact: content(lambda: exact()[0]))  # fmt: skip
        return noisy

    def label(self, name: str, query: str, draw: GaussianDraw) -> dict[str, Any]:
        """Return the fields of a noise label beside release and snapshot."""
        identity = {"link": self.name, "sum": name, "asked": query}
        noise = {**draw.noise_spec, "multiplier": str(draw.multiplier)}
        return {"mechanism": f"links/{VERSION}", "round": 0, "query": identity, "noise": noise}


def link_draws(run: LinkedTables, folder: Path, name: str, journal: Journal, release: str) -> LinkDraws:
    """Return the draws in a folder under a release."""
    head = {"release": release, "snapshot": str(run.manifest["snapshot"])}
    return LinkDraws(values=StoredDraws(folder, head), name=name, journal=journal, secret=run.run.secret.read)
