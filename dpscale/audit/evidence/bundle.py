"""Writing of an evidence bundle: a flat folder DIR/evidence of public or released facts, hashes.json last."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.answers.unit_counts import CUT_JOIN
from dpscale.audit.evidence.checklist import checklist
from dpscale.audit.evidence.draws import EventCounts, domain_file, draws_and_factors, file_hashes, folder_of
from dpscale.audit.evidence.growing import check_fixed, check_periods, growing_table
from dpscale.audit.evidence.link_draws import first_draws, is_allocated
from dpscale.audit.evidence.signing import ALGORITHM
from dpscale.base.errors import BudgetError
from dpscale.domain.public_totals import is_condition
from dpscale.job.join_job import cut_share
from dpscale.job.neighbours import describe_sides
from dpscale.ledger.chain import Link
from dpscale.privacy.accounting import PURE, Cost, float_above
from dpscale.privacy.attack_risk import rates_text, total_bounds
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.manifest import check_output, disk_errors, versions
from dpscale.runs.run import Run, now
from dpscale.runs.runner import ledger_dataset
from dpscale.runs.stage import STAGES
from dpscale.storage.files import listed, read_bytes, remove, store_errors, write_whole

LEFT_OUT = "(left out)"
PLACES = ("path", "domain", "ledger", "file", "via", "run_dir")
ADDRESS = re.compile(r"^(/|~|\.{1,2}/|[A-Za-z]:\\|\\\\)|://")


def redacted(value: Any, key: str = "") -> Any:
    """Return the value without paths and addresses, recognised by the names of settings and by their form."""
    if isinstance(value, dict):
        return {name: redacted(part, name) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part, key) for part in value]
    if isinstance(value, str) and (key in PLACES or ADDRESS.search(value)):
        return LEFT_OUT
    return value


FOLDER, HASHES, SIGNATURE, FORMAT = "evidence", "hashes.json", "signature.json", "dpscale-evidence/3"
SCRIPTS = ("recompute.py", "sensitivities.py", "crosscheck.py", "shapes.py")
SEARCHED = "dpscale-evidence/4"  # format of a run that found cells which are not public
GROWING, TIME_SCRIPT, TIME = "dpscale-evidence/5", "period_costs.py", "time.json"  # of a growing table
SEARCH_SCRIPT, PARTS = "search_costs.py", {"searches": "domain", "units": "units"}  # files by folder of the run
PUBLIC = ("allocation", "domain", "units", "earlier", "plan", "measurements", "answers", "synthetic", "trace.parquet",
          "report.html")  # fmt: skip
PUBLIC_FIELDS = ("release", "cost", "epsilon", "delta", "state", "reserved_at", "committed_at", "released_at",
        "unit", "unit_table", "relation", "bound", "span", "periods", "squared_mu", "public")  # fmt: skip
TOTALS = ("cap", "former_caps", "protects", "currency", "spent", "reserved", "remaining", "remaining_epsilon", "notes",
          "periods", "period_caps")  # fmt: skip

Fields = dict[str, Any]
Signer = tuple[str, Callable[[bytes], str]]


def write_bundle(run: Run, selftest: Sequence[Mapping[str, Any]], key: Signer | None = None) -> Path:
    """Write the evidence folder, replacing an existing one, and return its path.

    Raises
    ------
    JobError
        If the run has not been measured, its files were changed, it is one of several tables charged together, or a
        growing table whose measurements depend on its first period.
    BudgetError
        If the ledger of the release is not available.
    """
    with disk_errors(run.path), store_errors(run.path), run.locked():
        check_whole(run)
        run.require("measure")
        for one in (*run.tables.values(), *run.joins.values()):
            for stage in (name for name in STAGES if one.manifest["stages"].get(name, {}).get("state") == "done"):
                check_output(one.path, stage, one.manifest["stages"][stage])
        if (growing := growing_table(run)) is not None:
            check_periods(growing)
        contents = _texts(run)
        contents |= {name: canonical(value) for name, value in _facts(run, selftest).items()}
        contents["README.md"] += _risk_text(run, json.loads(contents["ledger.json"])).encode()
        return _written(run.path / FOLDER, contents | _sealed(contents, key))


def _risk_text(run: Run, ledger: Fields) -> str:
    """Return the attack risk of the release and of all releases of its dataset, for the readme."""
    swaps = run.attack_risk.swaps or any(map(is_condition, ledger.get("notes") or ()))  # also of another release
    together = rates_text(total_bounds(ledger["spent"], swaps=swaps))
    return f"\n## Attack risk\n\n{run.attack_risk.sentence}\n\n{RISK_README.format(together=together)}"


def check_whole(run: Run) -> None:
    """Raise JobError for a growing table without a fixed plan."""
    if (growing := growing_table(run)) is not None:
        check_fixed(growing)


def check_charged(run: Run) -> None:
    """Raise BudgetError if the ledger with the charge of the run is not available, or is damaged."""
    _ledger(ledger_dataset(run, chained=True), run.manifest["release"])


def canonical(value: Any) -> bytes:
    """Return the canonical text of a value; equal values have equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _facts(run: Run, selftest: Sequence[Mapping[str, Any]]) -> Fields:
    """Return the contents of the JSON files."""
    ledger = _ledger(ledger_dataset(run, chained=True), run.manifest["release"])
    drawn, factors, costs = draws_and_factors(run)
    events = _events(run, ledger, costs)
    return {
        "draws.json": drawn,
        "strategies.json": {"factors": factors},
        "events.json": events,
        "ledger.json": ledger,
        "run-files.json": file_hashes(run, PUBLIC),
        "selftest.json": {"passed": all(one["passed"] for one in selftest), "checks": selftest},
        "versions.json": {
            "format": _format(run),
            "made": now(),
            "run": run.manifest["versions"],
            "bundle": versions(),
        },
        "checklist.json": checklist(run, events, ledger, drawn),
    }


def _ledger(dataset: Fields, release: str) -> Fields:
    """Return the dataset's entry on the ledger with its hash chain, without digests and its name (maybe a path)."""
    if not dataset:
        raise BudgetError("privacy.ledger", "it does not contain this release", "the ledger with its charge",
                          "make the bundle where that ledger is available")  # fmt: skip
    rows = [{name: row[name] for name in PUBLIC_FIELDS if name in row} for row in dataset["releases"]]
    totals = {name: dataset[name] for name in TOTALS if name in dataset}
    return {"releases": rows, **totals, "chain": _chain(dataset["chain"], release)}


def _chain(links: Sequence[tuple[Link, str]], release: str) -> Fields:
    """Return the hash chain of the dataset; `opened` contains the release's sealed facts on its domain and plan."""
    own = next(link for link, _ in links if link.entry == "releases" and link.shown["release"] == release)
    shown = [{"entry": link.entry, "shown": link.shown, "hidden": link.hidden, "facts": link.sealed}
             for link, _ in links]  # fmt: skip
    return {"links": shown, "head": links[-1][1], "opened": {"key": own.key, "facts": dict(own.facts)}}


def _events(run: Run, ledger: Fields, costs: EventCounts) -> Fields:
    """Return the draws and the charges on the ledger as privacy events, with their claims."""
    name, spent = run.manifest["release"], ledger["spent"]
    entry = next(row for row in ledger["releases"] if row["release"] == name)
    charged = sum((_of_cost(row["cost"], ledger["currency"]) for row in ledger["releases"]), EventCounts())
    charged += _for_groups(charged, spent)
    return {
        "private": run.manifest["private"],
        "release": {
            "name": name,
            **_claim(entry["cost"], run.job.privacy.delta or spent["delta"]),
            "events": _listed(costs),
        },
        "dataset": {"epsilon": spent["epsilon"], "delta": spent["delta"], "events": _listed(charged)},
    }


def _claim(cost: Mapping[str, str], delta: float) -> Fields:
    """Return the claim of a ledger's entry: ε at δ, where δ is the additive one, or 0, for pure costs."""
    whole = Cost.from_dict(cost)
    delta = float_above(whole.delta) if whole.is_pure else delta
    epsilon = whole.epsilon_or_inf(delta)
    return {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": delta, "cost": dict(cost)}


def _of_cost(cost: Mapping[str, str], currency: str) -> EventCounts:
    """Return an entry as an event in the currency of its dataset, and its additive δ as another one."""
    whole = Cost.from_dict(cost)
    added = Counter({("delta", whole.delta): 1} if whole.delta else {})
    return added + Counter({("pure", whole.pure) if currency.startswith(PURE) else ("gaussian", whole.squared_mu): 1})


def _for_groups(charged: EventCounts, spent: Fields) -> EventCounts:
    """Return the cost beyond the entries, from group privacy of releases that protect less than the dataset."""
    more = EventCounts()
    for kind, name in (("gaussian", "squared_mu"), ("pure", "pure_epsilon"), ("delta", "additive_delta")):
        here = sum((cost * count for (own, cost), count in charged.items() if own == kind), Fraction(0))
        beyond = Fraction(spent.get(name) or 0) - here
        if here and beyond > here * Fraction(1e-9):
            more[kind, beyond] += 1
    return more


def _listed(events: EventCounts) -> list[Fields]:
    return [{"kind": kind, "cost": str(cost), "count": count, **_shown(kind, float(cost))}
            for (kind, cost), count in sorted(events.items())]  # fmt: skip


def _shown(kind: str, cost: float) -> Fields:
    """Return the parameter by which libraries describe such an event; `cost` is exact."""
    if kind in ("gaussian", "laplace") and cost:
        return {"noise_multiplier": cost**-0.5 if kind == "gaussian" else 1 / cost}
    return {}


def _texts(run: Run) -> dict[str, bytes]:
    """Return the readable files and the scripts."""
    parts = {"searches": _searched(run), "units": _unit_counted(run)}
    names = [*SCRIPTS, SEARCH_SCRIPT] if any(parts.values()) or is_allocated(run) else SCRIPTS
    scripts = {name: files("dpscale.audit.evidence").joinpath(name).read_bytes() for name in names}
    for part, tables in parts.items():
        for name, table in tables.items():
            file = f"{part}.{name}.json" if folder_of(run, table.path) else f"{part}.json"
            scripts[file] = read_bytes(table.path / PARTS[part] / f"{part}.json")
    readme = README
    if growing_table(run) is not None:
        scripts[TIME_SCRIPT] = files("dpscale.audit.evidence").joinpath(TIME_SCRIPT).read_bytes()
        scripts[TIME] = read_bytes(run.path / "plan" / TIME)
        readme += TIME_README
    if isinstance(run.content, LinkedTables) and (sides := describe_sides(run.content.neighbours)):
        readme += f"\n## Rows of no unit\n\n{sides.strip()}\n"
    if is_allocated(run):
        scripts["allocation.json"] = canonical(first_draws(run))
    return scripts | {"README.md": readme.encode(), "job.toml": tomli_w.dumps(_job(run)).encode()} | _domains(run)


def _format(run: Run) -> str:
    if growing_table(run) is not None:
        return GROWING
    return SEARCHED if _searched(run) or _unit_counted(run) or is_allocated(run) else FORMAT


def _searched(run: Run) -> dict[str, Any]:
    """Return the tables whose cells were searched."""
    return {name: one for name, one in run.tables.items() if one.requests("discovery")}


def _unit_counted(run: Run) -> dict[str, Any]:
    """Return the tables whose distinct units were counted."""
    return {name: one for name, one in run.tables.items() if one.requests("unit_counts")}


def _job(run: Run) -> Fields:
    """Return the job without paths and addresses, with the shares that were decided.

    Every link has its name, which may follow from a path.
    """
    content = redacted(run.job.to_dict())
    names = [one.link.called for one in run.links]
    content |= {"joins": {name: _join(run, name) for name in run.joins}} if run.joins else {}
    if names:
        for name, share in run.job.shares.items():
            kind, _, called = name.partition(".")
            one = content["link"][names.index(called)] if kind == "links" else content[kind][called]
            one["share"] = share
    return content | ({"link": [one | {"name": name} for one, name in zip(content["link"], names, strict=True)]}
                      if names else {})  # fmt: skip


def _join(run: Run, name: str) -> Fields:
    """Return the facts of a join: its base, the bound of the job, mechanism, share, and the part for rows beyond it."""
    assert isinstance(run.content, LinkedTables)
    own = run.joins[name]
    if name == CUT_JOIN:
        return {"base": run.content.neighbours.root, "mechanism": own.job.mechanism.name}
    section, join = (run.job.joins or {}).get(name), run.job.joined[name]
    given = {"share": section and section.share, "max_rows_per_unit": join.bound}
    facts = {"base": join.base, "mechanism": own.job.mechanism.name,
             "cut": cut_share(run.job, run.content.neighbours, name)}  # fmt: skip
    return facts | {key: value for key, value in given.items() if value is not None}


def _domains(run: Run) -> dict[str, bytes]:
    """Return the domain files of all tables: of private ones as the run wrote them. A tree is stated by its hash."""
    names = {name: f"domain.{name}.toml" for name in run.content.public_domains}
    public = {file: run.content.public_domains[name].to_files(file)[file] for name, file in names.items()}
    tables = {**run.tables, **{f"joins.{name}": one for name, one in run.joins.items()}}
    return public | {domain_file(run, name): _domain_text(run, one) for name, one in tables.items()}


def _domain_text(run: Run, part: Any) -> bytes:
    """Return the domain file of an only table as the run wrote it; that of a part follows from the job."""
    if not part.folder:
        return read_bytes(run.path / part.domain_file)
    files: dict[str, bytes] = part.domain.to_files()
    return files["domain.toml"]


def _sealed(contents: Mapping[str, bytes], key: Signer | None) -> dict[str, bytes]:
    """Return the hashes of all files and, with a key, the signature over them."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    sealed = {HASHES: canonical({"files": hashes, "public_key": key[0] if key else None})}
    if key:
        public, sign = key
        signature = {"algorithm": ALGORITHM, "public_key": public, "signature": sign(sealed[HASHES])}
        sealed[SIGNATURE] = canonical(signature)
    return sealed


def _written(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Write all files, the hashes last; existing files are removed first, so that a crash leaves no valid bundle."""
    for name in sorted(listed(folder), key=lambda one: one != HASHES):
        remove(folder / name)
    for name, content in sorted(contents.items(), key=lambda one: one[0] in (HASHES, SIGNATURE)):
        write_whole(folder / name, content)
    return folder


README = """# Evidence of a private release

The claims in this folder can be checked without the data and without dpscale:

    python recompute.py            exact sums from integers; with `pip install dp-accounting` also its accountants
    python search_costs.py         the same for the searches for cells, if there are any
    dpscale evidence --check .     in addition the hash of every file, and the signature if there is one
    dpscale evidence --check . --ledger HEAD    in addition the head of the ledger (see `dpscale ledger show`)

| file | content |
| --- | --- |
| `events.json` | the privacy events of this release and of all releases of its dataset, and the claims |
| `draws.json` | every draw and selection of each table and link, with its noise and what bounds its sensitivity |
| `strategies.json` | the distinct integer strategies |
| `ledger.json` | the ledger's entries of the dataset, with their hash chain |
| `checklist.json` | questions after NIST SP 800-226, answered from the run |
| `searches.json`, or `searches.TABLE.json` | searches for cells, if there are any: noise, thresholds and results |
| `allocation.json` | the first measurement of tables and links by which the budget was divided, if there was one |
| `units.json`, or `units.TABLE.json` | numbers of distinct units, if there are any: the noise of each set |
| `job.toml` | the job, without paths and addresses |
| `domain.toml`, or `domain.TABLE.toml` of several tables | the domain |
| `run-files.json` | SHA-256 of plans, measurements, answers and synthetic rows in the run directory |
| `selftest.json` | the audit of the installation that made this bundle |
| `versions.json` | software versions of the run and of the bundle |
| `hashes.json`, `signature.json` | SHA-256 of every other file; the curator's Ed25519 signature over the hashes |

A bundle shows that the listed draws cost what was charged, and that its files agree. A consistent change of all files
is detected only with the curator's public key or the head of the ledger's hash chain. A bundle cannot show that the
list is complete, that the secret was protected, or that no other release of the same data was made under another
ledger; these rest on the curator's signature and on an inspection of the curator's machine.
"""
RISK_README = """All releases of the dataset on the ledger together: {together}.
They protect what `protects` in `ledger.json` states.

With the squared mu of `ledger.json`, the detection rate at a false alarm rate a is at most Phi(Phi⁻¹(a) + mu), for pure
epsilon at most min(e^epsilon a, 1 - e^-epsilon (1 - a)), and an additive delta adds to both (Wasserman and Zhou 2010;
Dong, Roth and Su 2022).
"""
TIME_README = """
## Growing table

`time.json` is plan/time.json of the run: the integer matrix R, in which row t has the weights of the periods up to t.
Every component of `draws.json` is a released period with the same draws; `run-files.json` has the files of all
periods. The cost of the horizon to a unit with rows in at most k periods is that of one period times the largest
sum of |(RᵀR)[s, s']| over the pairs of k periods, or for Laplace noise times the k largest sums of |R[t, s]| over t.
`period_costs.py`, which recompute.py runs, repeats this and compares it with job, ledger and plan.
"""
