"""One charge for all pieces: what tables and links may cost together is reserved before any of them is drawn.

Each piece then tells the ledger, before its first draw, what it will draw of which data: another directory that draws
something else under the same charge is refused, as a later round of an adaptive release would be.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dpscale.measurement.tags import secret_tag
from dpscale.multitable.pieces import budget
from dpscale.multitable.run import DatabaseRun
from dpscale.privacy.accounting import Cost
from dpscale.privacy.secret import destroy_secret, make_secret, read_secret
from dpscale.runs.stages.spending import keep_link, opened_ledger
from dpscale.storage.files import flush_names


def hold_secret(run: DatabaseRun) -> None:
    """Make the secret of the links at the first draw; later it must be there."""
    if run.manifest["secret"] is None:
        make_secret(run.secret_path, run.job.engine.seed)
        run.update(secret="made", secret_tag=secret_tag(read_secret(run.secret_path)))


def whole_cost(run: DatabaseRun) -> Cost:
    """Of all pieces: what tables' plans come to for one unit of the job, and what links may."""
    tables = [table.planned.cost.scaled(run.whom.steps[name]) for name, table in run.tables.items()]
    links = [Cost(gaussian=budget(run.job, f"links.{link.called}")) for link in run.job.link]
    return Cost.total([*tables, *links]).coarsened()


def entry(run: DatabaseRun) -> dict[str, Any]:
    """What the ledger is told of the whole: known once all tables are planned."""
    content = [run.manifest["job_sha256"], [table.planned.digest for table in run.tables.values()]]
    protects = run.whom.protects
    return {
        "release": run.manifest["release"],
        "cost": whole_cost(run).to_dict(),
        "digest": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        "epsilon": run.job.privacy.epsilon,
        "delta": run.job.privacy.delta,
        "protects": {
            "unit": protects.unit,
            "relation": protects.relation,
            "bound": protects.bound,
            "table": protects.table,
        },
    }


def charge(run: DatabaseRun, reserve: bool = True) -> str:
    """Reserve the whole cost; a repeat costs nothing. Returns the release's state."""
    told = entry(run)
    with opened_ledger(run) as ledger:
        state = ledger.charge(run.job.dataset, told["release"], Cost.from_dict(told["cost"]), told["digest"],
                              told["epsilon"], told["delta"], reserve, run.whom.protects,
                              public=run.job.engine.seed is not None)  # fmt: skip
        if reserve:
            keep_link(run, ledger, told["release"])
    if reserve:
        run.update(privacy={"dataset": run.job.dataset, **told, **told["protects"]})
    return state


def keep_piece(run: DatabaseRun, number: int, drawn: str) -> None:
    """Tell the ledger what a link's draws are of."""
    with opened_ledger(run) as ledger:
        ledger.decide(run.manifest["release"], number, drawn)


def hand_over(run: DatabaseRun) -> None:
    """Every table's run knows under whose charge it draws."""
    for number, table in enumerate(run.tables.values()):
        within = {**entry(run), "piece": number}
        if table.manifest.get("within") != within:
            table.update(within=within)


def publish(run: DatabaseRun, state: str) -> None:
    """All noise is drawn: say so on the ledger, and destroy the secret."""
    release = run.manifest["release"]
    with opened_ledger(run) as ledger:
        if state == "reserved":
            ledger.commit(release)
        for folder in (*sorted((run.path / "links").glob("*/")), run.path / "links", run.path):
            flush_names(folder)  # a power cut must not take what cannot be drawn again
        destroy_secret(run.secret_path)
        run.update(secret="destroyed")
        if state != "released":
            ledger.publish(release)
