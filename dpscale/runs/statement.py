"""Public statement of a release: its job, its domains, and the facts of its parts that bound the effect of a unit.

The charge seals the hashes of these texts on the ledger before the first draw. An auditor compares them with the copies
in an evidence bundle, so the bundle needs no derivation of sensitivities and shares from the job. The texts contain no
path, no count and no setting that may change after the charge.

*Facts of a table.*
They are its contribution bound, and the cells of its attributes. A record counts once in every marginal, or in parts of
1/R along a number with R steps. So the k rows of a unit change the counts by at most k in L1, which is also their
largest change in L2.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from dpscale.answers.report.page import redacted
from dpscale.contributions.joins import REACH
from dpscale.domain.number import TOTAL, Number
from dpscale.job.job import former_content
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.plan import packed
from dpscale.privacy.accounting import LAPLACE
from dpscale.storage.files import read_bytes
from dpscale.workload.merging import MergedCells

Facts = dict[str, Any]
LEFT_OUT = "(left out)"
CHANGEABLE = ("engine", "synthesize")  # sections that may change after the charge; a seed may not

ROWS, UNITS, CUT = "rows", "units", "cut"  # names of bounds; the last two are counts of draws of units
SENSITIVITY = "largest column norms of integer matrices, exactly: strategies.json"


def canonical(value: Any) -> bytes:
    """Return the canonical text of a value; equal values have equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def stated_job(run: Any) -> bytes:
    """Return the job as TOML, without paths, addresses and settings that may change after the charge."""
    content = {name: section for name, section in former_content(run.job).items() if name not in CHANGEABLE}
    seed = run.job.engine.seed
    content |= {} if seed is None else {"engine": {"seed": seed}}
    return tomli_w.dumps(redacted(content, hidden=LEFT_OUT)).encode()


def domain_name(part: str, folder: str) -> str:
    """Return the name of the domain file of a part in a statement."""
    return f"domain.{part.removeprefix('tables.')}.toml" if folder else "domain.toml"


def stated_domains(run: Any) -> dict[str, bytes]:
    """Return the domain files by name: of public tables, and of all parts that have a domain.

    That of an only table is the file of the run. A tree is stated by its hash.
    """
    if run.content.domain_file is None:
        return domains_beside(run)
    return {"domain.toml": read_bytes(run.path / str(run.content.domain_file)), **domains_beside(run)}


def domains_beside(run: Any) -> dict[str, bytes]:
    """Return the domain files of the run by name, without that of a table that is its only one."""
    files = dict[str, bytes]()
    for name, public in run.content.public_domains.items():
        file = f"domain.{name}.toml"
        files[file] = public.to_files(file)[file]
    for part in (*run.tables.values(), *run.joins.values()):
        if part.folder:
            files[domain_name(part.name, part.folder)] = part.domain.to_files()["domain.toml"]
    return files


def stated_parts(run: Any, entries: Mapping[str, str]) -> dict[str, Facts]:
    """Return the facts of every part that is charged, by name.

    Parameters
    ----------
    run : Run
    entries : mapping of str to str
        Names of the entries of the ledger, with the ends of their release ids.

    Returns
    -------
    dict
        The facts of `Part.facts_of_draws`, and `costs`: the cost under each entry, by the end of its release id.
    """
    facts = dict[str, Facts]()
    for name, part in run.parts.items():
        costs = {}
        for entry, end in entries.items():
            charged = part.charges(entry)
            if charged is not None:
                cost, _ = charged
                costs[end] = cost.to_dict()
        if costs:
            facts[name] = {**part.facts_of_draws(), "costs": costs}
    return facts


def sealed_hashes(run: Any, entries: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of a statement by the names of its files without their ends.

    The domain file of an only table is left out: the charge has its hash as another fact.

    Notes
    -----
    Guarantee: with these hashes on the ledger, a bundle with another job, another bound of the effect of a unit or
    another cost of a part does not match the entry of its release.
    """
    texts = {"job": stated_job(run), "parts": canonical(stated_parts(run, entries))}
    texts |= {file.removesuffix(".toml"): text for file, text in domains_beside(run).items()}
    return {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}


def bound_of(*changes: Sequence[int], values: int | None = None) -> Facts:
    """Return the bound of the effect of a unit on exact counts: pairs of a number of counts and their largest change.

    Parameters
    ----------
    *changes : sequence of int
        Number of counts, and by how much each changes at most.
    values : int, optional
        Number of values of the draw.
    """
    return alternatives([list(changes)], values)


def alternatives(listed: Sequence[Sequence[Sequence[int]]], values: int | None = None) -> Facts:
    """Return the bound by several kinds of changes, of which a unit makes one.

    Each entry of `listed` is a kind of change: pairs of a number of counts and their largest change. `values` is the
    number of values of the draw.
    """
    changes = [[[int(number), int(change)] for number, change in kind] for kind in listed]
    return {"changes": changes} | ({} if values is None else {"values": int(values)})


def table_facts(table: Any, plan: MeasurementPlan, rows: int) -> Facts:
    """Return the facts of a table.

    Parameters
    ----------
    table : TablePart
    plan : MeasurementPlan
        Plan of the measurements.
    rows : int
        Largest number of rows of a unit that are counted.

    Returns
    -------
    dict
        For JSON.
    """
    bounded = table.job.data.max_rows_per_unit
    contribution = f"at most {bounded} of its rows are counted" if bounded else "one row"
    twice = f"; neighbours of the release are {table.steps} steps apart" if table.steps > 1 else ""
    delta = {"delta": str(plan.cost.delta)} if plan.cost.delta else {}
    searches = _searches(table)
    return {
        "axes": _axes(table.domain, None if plan.evidence_plan is None else plan.evidence_plan.blocks.merged),
        "bounds": {ROWS: bound_of((1, rows)), **_unit_bounds(table, rows), **_vote_bounds(searches)},
        "contribution": contribution + twice,
        "domain": domain_name(table.name, table.folder),
        "law": "laplace" if table.job.privacy.noise == LAPLACE else "gaussian",
        "mechanism": plan.mechanism,
        "post_processing": f"{table.job.reconstruction.name}: from released values alone",
        "sensitivity": SENSITIVITY,
        "steps": table.steps,
        "thresholds": sum("threshold" in search for search in searches),
        **delta,
    }


def votes_on(attribute: str) -> str:
    """Return the name of the bound of votes for the values of an attribute."""
    return f"votes on {attribute}"


def _unit_bounds(table: Any, rows: int) -> dict[str, Facts]:
    """Return by how much a unit of at most `rows` counted rows changes the draws of units; none without such draws.

    A pair of `bound_of` is (number of counts, largest change of each). UNITS are numbers of distinct units by cells: a
    unit adds 1 to the cell of each of its rows. CUT is the number of rows beyond the bound.
    """
    if not table.requests("unit_counts"):
        return {}
    # rows of a unit are counted up to REACH · rows; the first `rows` of them are within the bound
    return {UNITS: bound_of((rows, 1)), CUT: bound_of((1, (REACH - 1) * rows))}


def _searches(table: Any) -> list[dict[str, Any]]:
    """Return the records of the searches for cells that are not public."""
    if not table.requests("discovery"):
        return []
    records: list[dict[str, Any]]
    _, records = table.stages["discover"].function("terms")(table)
    return records


def _vote_bounds(searches: Sequence[dict[str, Any]]) -> dict[str, Facts]:
    """Return the bounds of votes by name, of the records of searches by votes.

    A unit with r values changes r counts by at most vote/√r each, in L2 at most as much as one count by its whole vote.
    """
    votes = {record["attribute"]: int(record["vote"]) for record in searches if "vote" in record}
    return {votes_on(attribute): bound_of((1, vote)) for attribute, vote in votes.items()}


def _axes(domain: Any, merged: MergedCells | None) -> dict[str, Facts]:
    """Return the cells of attributes and numbers, the parts of a record, and the rows over which a total is bounded.

    An attribute of `merged`, whose cells are summed over classes before they are measured, has the class of each cell.
    """
    axes = dict[str, Facts]()
    for name in domain.axis_names:
        axis = domain[name]
        axes[name] = {"cells": axis.size}
        if isinstance(axis, Number):
            axes[name]["parts"] = axis.denominator
            if axis.per_unit == TOTAL:
                axes[name]["total_of"] = axis.rows_per_unit
        if merged is not None and name in merged.classes:
            axes[name]["classes"] = packed(merged.classes[name])
    return axes
