"""A part that measures the number of rows of the protected table, for the job's remaining budget."""

import json
from fractions import Fraction

import numpy as np

from dpscale.measurement.journal import StoredDraws
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.secret import snapshot_tag
from dpscale.runs.charge import journal_of
from dpscale.runs.links.link_data import keyed
from dpscale.runs.run import DrawFacts, Journaled, Part
from dpscale.runs.statement import bound_of

SHARE = Fraction(1, 100)  # of the budget
STATES_FACTS = True  # a test takes the bounds of the draws away
TIMES = 1  # a test makes the part too expensive


class Heads(Part):
    exact: int | None = None

    def __init__(self, whole):
        super().__init__(whole.run, "heads.root", "heads")
        self.whole, self.depends_on = whole, tuple(f"tables.{name}" for name in whole.tables)

    @property
    def cost(self):
        return Cost(gaussian=TIMES * SHARE * Fraction(self.whole.job.privacy.budget.amount))

    def charges(self, entry):
        return (self.cost, "one count") if entry == "privacy" else None

    def facts_of_draws(self):
        if not STATES_FACTS:
            return {}
        return {"bounds": {"rows": bound_of((1, 1), values=1)}, "contribution": "one row", "law": "gaussian",
                "mechanism": "a count", "post_processing": "none", "sensitivity": "1", "steps": 1}  # fmt: skip

    @property
    def journaled(self):
        return [Journaled("privacy", self.path, lambda label: "rows", {"rows": DrawFacts("rows", values=1)})]

    def check(self, engine):
        if not self.is_measured():
            self.exact = len(keyed(engine, self.whole.job, self.whole.neighbours.root).words)

    def measure(self, engine):
        self.rows()

    def is_measured(self):
        return self.draws.path(0) is not None

    @property
    def draws(self):
        return StoredDraws(self.path, {"release": self.release, "snapshot": str(self.run.manifest["snapshot"])})

    def rows(self):
        draw = gaussian_draw(1, self.cost.gaussian, 1, self.name)
        label = {"part": self.name, **draw.noise_spec, "multiplier": str(draw.multiplier)}

        def content(counts):
            return {"rows": snapshot_tag(self.secret.read(), str(counts()[0]))}

        [[rows]] = self.draws.draw(journal_of(self), 0, [(draw, label)], lambda: [np.array([self.exact])],
                                   self.secret.read, content)  # fmt: skip
        return float(rows)

    def reconstruct(self, engine):
        (self.run.path / "heads.json").write_text(json.dumps({"rows": self.rows()}))


def heads_parts(whole):
    return [Heads(whole)]
