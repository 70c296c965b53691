"""Public statement of a release: its job, its domains, and the facts of its parts that bound the effect of a unit.

The charge seals the hashes of these texts on the ledger before the first draw. An auditor compares them with the copies
in an evidence bundle, so the bundle needs no derivation of sensitivities and shares from the job. The texts contain no
path, no count and no setting that may change after the charge.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from dpscale.answers.report.page import redacted
from dpscale.job.digest import former_content
from dpscale.storage.files import read_bytes

Facts = dict[str, Any]
LEFT_OUT = "(left out)"
CHANGEABLE = ("engine", "synthesize")  # sections that may change after the charge; a seed may not


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
    """Return the hashes of a statement by the names of its files without their ends; that of an only domain is apart.

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
    """Return the bound by several kinds of changes, of which a unit makes one."""
    whole = [[[int(number), int(change)] for number, change in one] for one in listed]
    return {"changes": whole} | ({} if values is None else {"values": int(values)})
