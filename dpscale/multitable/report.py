"""The report of several tables: whom it protects, what it cost, integrity, degrees. Reads no record."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import tomli_w

from dpscale.answers.report.figures import COLOURS, new_figure, svg
from dpscale.answers.report.redacted import public_name, redacted
from dpscale.answers.report.sections import Section, check_rendered, render_sections
from dpscale.multitable.integrity import Released, files_of
from dpscale.multitable.run import DatabaseRun
from dpscale.multitable.whom import Whom
from dpscale.plans.figures import figure
from dpscale.privacy.accounting import Cost, epsilon_of_squared_mu
from dpscale.storage.files import write_whole

DELTA = 1e-9
SHOWN = 60


def neighbours(whom: Whom) -> str:
    """Whom the release protects, in a sentence."""
    if whom.replaces:
        unit = "one row of any private table, replaced together with all its links" if whom.steps else (
            "all links of one row of either table, replaced by others")  # fmt: skip
        return f"Neighbours differ by {unit}, of which it has at most as many as the job allows."
    unit = f"one row of {whom.root}, added or removed together with all its links and children"
    return f"Neighbours differ by {unit}; of each kind as many are counted as the job allows."


SECTIONS = (
    Section("summary", "Summary", listed=False),
    Section("protects", "Whom it protects"),
    Section("tables", "Tables"),
    Section("links", "Links"),
    Section("limits", "What is not protected"),
    Section("read", "Read the answers"),
    Section("job", "The job"),
)


def write_report(run: DatabaseRun) -> None:
    """report.html, and synthetic/_links.json with what it says of links; ReportError, after both are written, where a
    section could not be made."""
    found = [Released(run, link) for link in run.job.link]
    links = [one.told() for one in found]
    write_whole(run.path / "synthetic" / "_links.json", json.dumps(links, indent=1).encode())
    frame = {"manifest": run.manifest, "dataset": public_name(run.manifest["privacy"]["dataset"])}
    cost = cache(lambda: _cost(run))
    values: dict[str, Callable[[], Any]] = {
        **{name: partial(frame.__getitem__, name) for name in frame},
        **{name: lambda name=name: cost()[name] for name in ("epsilon", "delta", "mu")},  # type: ignore[misc]
        "neighbours": lambda: neighbours(run.whom),
        "tables": lambda: _tables(run),
        "links": lambda: [{**told, "share": _share(run, f"links.{told['name']}"), "plot": degree_plot(one)}
                          for one, told in zip(found, links, strict=True)],
        "job_text": lambda: tomli_w.dumps(redacted(run.job.to_dict())),
    }  # fmt: skip
    page, failed = render_sections(frame, SECTIONS, values, "dpscale.multitable")
    write_whole(run.path / "report.html", page.encode())
    check_rendered(failed, run.path)


def _cost(run: DatabaseRun) -> dict[str, Any]:
    delta = run.job.privacy.delta or DELTA
    spent = Cost.from_dict(run.manifest["privacy"]["cost"]).squared_mu
    return {"epsilon": epsilon_of_squared_mu(spent, delta), "delta": delta, "mu": float(spent) ** 0.5}


def _tables(run: DatabaseRun) -> list[dict[str, Any]]:
    return [{"name": name, "rows": _count(run, name), "share": _share(run, f"tables.{name}"), "public": one.public,
             "attributes": len(run.job.domains[name].names), "most": run.whom.rows.get(name)}
            for name, one in run.job.tables.items()]  # fmt: skip


def _share(run: DatabaseRun, piece: str) -> str:
    share = run.job.shares.get(piece)
    return "" if share is None else f"{figure(100 * share)} %"


def _count(run: DatabaseRun, name: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files_of(run, name))


def degree_plot(one: Released) -> str:
    """Of each side the share of rows with at most so many links: as released with its noise, and of the rows here."""
    measured = one.measured()
    if not any(len(at) > 1 for at, _ in measured):
        return ""
    picture, axes = new_figure(2.6, max(len(measured), 1))
    names = (one.link.parent, one.link.child)
    for place, (at, shares) in enumerate(measured):
        _side(np.atleast_1d(axes)[place], names[place], at, shares, one.degrees[place])
    return svg(picture)


def _side(axes: Any, name: str, at: Any, shares: Any, degrees: Any) -> None:
    most = int(max(degrees.max(initial=0), 1))
    kept, steps = at <= max(2 * most, SHOWN), np.arange(most + 2)
    shown = np.searchsorted(np.sort(degrees), steps, side="right") / max(len(degrees), 1)
    axes.step(steps, shown, where="post", color=COLOURS[0], label="rows here")
    axes.scatter(at[kept], shares[kept], s=12, color=COLOURS[1], linewidths=0, zorder=3, label="measured, with noise")
    if max(most, at[kept].max(initial=0)) > SHOWN:
        axes.set(xscale="symlog", xlim=(-0.5, None))
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel=f"links of a row of {name}", ylabel="share with no more", ylim=(min(0.0, shares[kept].min()), None))
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
