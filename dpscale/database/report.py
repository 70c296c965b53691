"""The report of several tables: whom it protects, what it cost, integrity, degrees. Reads no record."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dpscale.database.job import LinkSection
from dpscale.database.run import DatabaseRun
from dpscale.database.whom import Whom
from dpscale.privacy.accounting import Cost, epsilon_of_squared_mu
from dpscale.storage.files import read_text, write_whole

DELTA = 1e-9


def neighbours(whom: Whom) -> str:
    """Whom the release protects, in a sentence."""
    if whom.replaces:
        unit = "one row of any private table, replaced together with all its links"
        return f"Neighbours differ by {unit}, of which it has at most as many as the job allows."
    unit = f"one row of {whom.root}, added or removed together with all its links and children"
    return f"Neighbours differ by {unit}; of each kind as many are counted as the job allows."


def write_report(run: DatabaseRun) -> None:
    """report.html, and synthetic/_links.json with what it says of links."""
    from jinja2 import Environment, PackageLoader

    page = Environment(loader=PackageLoader("dpscale.database", "."), autoescape=True).get_template("report.html")
    links = [integrity(run, link) for link in run.job.link]
    write_whole(run.path / "synthetic" / "_links.json", json.dumps(links, indent=1).encode())
    delta = run.job.privacy.delta or DELTA
    spent = Cost.from_dict(run.manifest["privacy"]["cost"]).squared_mu
    said, epsilon = neighbours(run.whom), epsilon_of_squared_mu(spent, delta)
    shown = page.render(manifest=run.manifest, neighbours=said, epsilon=epsilon, delta=delta, tables=_tables(run),
                        links=links)  # fmt: skip
    write_whole(run.path / "report.html", shown.encode())


def _tables(run: DatabaseRun) -> list[dict[str, Any]]:
    return [{"name": name, "rows": f"{_count(run, name):,}", "share": _share(run, f"tables.{name}"),
             "note": "public, as it is" if one.public else _own_report(name)}
            for name, one in run.job.tables.items()]  # fmt: skip


def _own_report(name: str) -> str:
    return f'<a href="tables/{name}/report.html">its own report</a>'


def _share(run: DatabaseRun, piece: str) -> str:
    share = run.job.shares.get(piece)
    return "" if share is None else f"{100 * share:.0f} %"


def _files(run: DatabaseRun, name: str) -> list[Any]:
    told = json.loads(read_text(run.path / "synthetic" / "_tables.json"))
    return [run.path / "synthetic" / file for file in told[name]]


def _count(run: DatabaseRun, name: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in _files(run, name))


def integrity(run: DatabaseRun, link: LinkSection) -> dict[str, Any]:
    """What holds of a link's rows, looked at in the files as they are."""
    first, second = run.job.ends(link)
    ends = _column(run, link.child if link.via is None else link.called, first)
    parents = _column(run, link.parent, run.job.key(link.parent))
    there = ends.isin(parents)
    whole, most = bool(there[ends.notna()].all()), int(ends.value_counts().max()) if len(ends) else 0
    if link.via is not None:
        other = _column(run, link.called, second)
        whole &= bool(other.isin(_column(run, link.child, run.job.key(link.child))).all())
        whole &= not np.any(_both(ends, other).duplicated())
    between, count = f"{link.parent} and {link.child}", f"{int(ends.notna().sum()):,}"
    return {"name": link.called, "between": between, "links": count, "share": _share(run, f"links.{link.called}"),
            "degrees": most, "integrity": "yes" if whole else "no"}  # fmt: skip


def _column(run: DatabaseRun, name: str, columns: tuple[str, ...]) -> Any:
    """A key as a pandas Series; one of several columns as texts."""
    import pandas as pd
    import pyarrow.parquet as pq

    frame = pd.concat([pq.read_table(file, columns=list(columns)).to_pandas() for file in _files(run, name)])
    if len(columns) == 1:
        return frame[columns[0]].reset_index(drop=True)
    return frame.astype(str).agg("\0".join, axis=1).reset_index(drop=True)


def _both(one: Any, other: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"one": one, "other": other})
