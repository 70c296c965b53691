"""A database of three levels with a star and pairs, jobs with joins over it, and exact counts of a join."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from dpscale.counting.count import encoded
from dpscale.engine.counting import partition_groups
from dpscale.engine.schedulers import Engine
from dpscale.job import Job
from dpscale.runs.join_part import JoinedTable
from dpscale.runs.source import open_table, rows_beyond_bound
from tests.links.test_neighbours import make_database, remove_person, write_database
from tests.running import begin_linked

__all__ = ["exact_counts", "join_job", "joins_of", "make_database", "remove_person", "sets"]

CHAIN = ["persons.x", "accounts.y", "payments.x"]
PARTS: dict[str, dict[str, Any]] = {
    "chain": {"attributes": [CHAIN]},
    "star": {"attributes": [["accounts.x", "payments.y", "kinds.y"]], "through": ["payments", "kinds"]},
    "bounded": {"attributes": [["persons.y", "payments.y"]], "max_rows_per_unit": 2},
    "pairs": {"attributes": [["persons.y", "accounts.x", "kinds.x"]], "through": ["tags", "accounts"]},
    "parents": {"attributes": [["persons.x", "accounts.y"]]},
    "degrees": {"attributes": [["persons.x", "accounts.count"]], "per": "persons"},
    "below": {"attributes": [["persons.x", "payments.count", "tags.count"]], "per": "persons"},
    "middle": {"attributes": [["accounts.x", "persons.y", "payments.count", "tags.count"]], "per": "accounts"},
}


def sets(**parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return parts of the workload with their names."""
    return [{"family": "marginal", "name": name, **part} for name, part in parts.items()]


def join_job(
    folder: Path, data: dict[str, pd.DataFrame], seed: int = 0, where: dict[str, str] | None = None, **changes: Any
) -> Job:
    """Write the database in shuffled files, and return a job with all joins; `changes` replace sections."""
    job = write_database(folder, data, np.random.default_rng(seed), where).to_dict()
    content = job | {"workload": sets(**PARTS), "engine": {"scheduler": "synchronous", "seed": 1}} | changes
    (folder / "job.toml").write_text(tomli_w.dumps(content))
    return Job.read(folder / "job.toml")


def joins_of(job: Job, folder: Path) -> dict[str, JoinedTable]:
    return begin_linked(job, folder).joins


def exact_counts(run: JoinedTable, engine: Engine) -> Counter[tuple[int, ...]]:
    """Return the number of counted rows of a join by the codes of all its attributes."""
    names = [name for name in run.domain.axis_names]
    table = open_table(run, names, engine)
    groups = partition_groups(table.partitions, engine.workers)
    dropped = rows_beyond_bound(run, engine, table, groups, names) or {}
    found: Counter[tuple[int, ...]] = Counter()
    for codes, gone, partition, first in encoded(run.domain, table.partitions, names):
        out = np.zeros(codes.shape[1], bool) if gone is None else gone
        if partition in dropped:
            out |= dropped[partition].within(first, codes.shape[1])
        found.update(map(tuple, codes.T[~out].tolist()))
    return found
