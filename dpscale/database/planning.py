"""What a job of several tables comes to, before any data are read."""

from __future__ import annotations

import math
from typing import Any

from dpscale.database.job import DatabaseJob
from dpscale.database.report import neighbours
from dpscale.database.whom import whom


def summary(job: DatabaseJob) -> dict[str, Any]:
    """Neighbours in a sentence; of every piece its share, its mu, and how much of it one neighbour moves."""
    protects, amount = whom(job), job.privacy.budget.amount
    moved = {f"links.{name}": links for name, links in protects.moved.items()}
    moved |= {f"tables.{name}": steps for name, steps in protects.steps.items()}
    shares = job.shares.items()
    pieces = [{"name": name, "share": own, "mu": math.sqrt(amount * own), "moved": moved[name]} for name, own in shares]
    return {"neighbours": neighbours(protects), "relation": protects.protects.relation, "mu": math.sqrt(amount),
            "dataset": job.dataset, "pieces": pieces}  # fmt: skip
