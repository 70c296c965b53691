"""A component that measures the number of rows of the protected table, for the job's remaining budget."""

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpscale.measurement.measurement import LinkRecords
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.secret import snapshot_tag
from dpscale.runs.composite import CompositeRun
from dpscale.runs.links.link_data import keyed

SHARE, NUMBER = Fraction(1, 100), 1 << 40  # of the budget; of the record on the ledger
TIMES = 1  # a test makes the component too expensive


@dataclass(eq=False)
class Heads:
    run: CompositeRun
    name = "heads.root"
    plan_digest = "one count"
    exact: int | None = None

    @property
    def depends_on(self):
        return tuple(f"tables.{name}" for name in self.run.tables)

    @property
    def cost(self):
        return Cost(gaussian=TIMES * SHARE * Fraction(self.run.job.privacy.budget.amount))

    def plan(self, engine):
        pass

    def check(self, engine):
        if not self.is_measured():
            self.exact = len(keyed(engine, self.run.job, self.run.neighbours.root).words)

    def measure(self, engine):
        if self.is_measured():
            return
        secret, draw = self.run.secret.read(), gaussian_draw(1, self.cost.gaussian, 1, self.name)
        self.run.charge()
        self.run.record_draws(NUMBER, hashlib.sha256(snapshot_tag(secret, str(self.exact)).encode()).hexdigest())
        self.records.measure("rows", "one count", np.array([self.exact]), draw, secret)

    def close(self):
        pass

    @property
    def records(self):
        manifest = self.run.manifest
        return LinkRecords(self.run.path / "links" / "heads", manifest["release"], str(manifest["snapshot"]), "heads")

    def is_measured(self):
        return self.records.measured("rows") is not None

    def reconstruct(self, engine):
        (self.run.path / "heads.json").write_text(json.dumps({"rows": float(self.records.measured("rows")[0])}))

    def synthesize(self, engine):
        return {}

    def report(self, engine):
        pass


def heads_components(run):
    return [Heads(run)]
