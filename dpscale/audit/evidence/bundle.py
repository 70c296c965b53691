"""Writing of an evidence bundle: a flat folder DIR/evidence of public or released facts, the envelope last."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpscale.audit.evidence.checklist import answers
from dpscale.audit.evidence.envelope import ENVELOPE, Signer, sealed
from dpscale.audit.evidence.optimality import stated_programs
from dpscale.audit.evidence.records import Records
from dpscale.base.errors import BudgetError, JobError
from dpscale.domain.public_totals import is_condition
from dpscale.job.neighbours import describe_sides, neighbour_relation
from dpscale.ledger.chain import Link
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import Cost, float_above
from dpscale.privacy.attack_risk import rates_text, total_bounds
from dpscale.runs.manifest import check_output, disk_errors, versions
from dpscale.runs.periods.growing import FOLDER as ROWS_FOLDER, ROWS, GrowingPart
from dpscale.runs.run import ENTRIES, Run, now
from dpscale.runs.runner import ledger_dataset
from dpscale.runs.stage import STAGES
from dpscale.runs.statement import canonical, stated_domains, stated_job, stated_parts
from dpscale.storage.files import check_real, is_local, listed, remove, store_errors, write_whole
from dpscale.storage.objects import slashed

FOLDER, FORMAT = "evidence", "dpscale-evidence/6"
SCRIPTS = ("recompute.py", "sensitivities.py", "checklist.py")
PUBLIC = ("allocation", "domain", "units", "earlier", "plan", "measurements", "answers", "synthetic", "trace.parquet",
          "report.html")  # fmt: skip
PUBLIC_FIELDS = ("release", "cost", "epsilon", "delta", "state", "reserved_at", "committed_at", "released_at",
        "unit", "unit_table", "relation", "bound", "span", "periods", "squared_mu", "public")  # fmt: skip
TOTALS = ("cap", "former_caps", "protects", "currency", "spent", "reserved", "remaining", "remaining_epsilon", "notes",
          "periods", "period_caps")  # fmt: skip

Fields = dict[str, Any]


def write_bundle(run: Run, selftest: Sequence[Mapping[str, Any]], key: Signer | None = None) -> Path:
    """Write the evidence folder, replacing an existing one, and return its path.

    Raises
    ------
    JobError
        If the run has not been measured, its files were changed, a part states no facts of its draws, or it is a
        growing table whose measurements depend on its first period.
    BudgetError
        If the ledger of the release is not available.
    """
    with disk_errors(run.path), store_errors(run.path), run.locked():
        check_whole(run)
        run.require("measure")
        for part in measured_parts(run):
            for stage in (name for name in STAGES if part.manifest["stages"].get(name, {}).get("state") == "done"):
                check_output(part.path, stage, part.manifest["stages"][stage])
        contents = _facts(run, selftest)
        texts = {f"{name}.json": canonical(value) for name, value in contents.items()} | _texts(run)
        texts["README.md"] += _risk_text(run, contents["ledger"]).encode()
        return _written(run.path / FOLDER, texts | {ENVELOPE: sealed(texts, key)})


def _risk_text(run: Run, ledger: Fields) -> str:
    """Return the attack risk of the release and of all releases of its dataset, for the readme."""
    swaps = run.attack_risk.swaps or any(map(is_condition, ledger.get("notes") or ()))  # also of another release
    together = rates_text(total_bounds(ledger["spent"], swaps=swaps))
    return f"\n## Attack risk\n\n{run.attack_risk.sentence}\n\n{RISK_README.format(together=together)}"


def measured_parts(run: Run) -> list[Any]:
    """Return the parts with stages of their own: tables and joins, or the released periods and their answers."""
    growing = growing_table(run)
    if growing is None:
        return [*run.tables.values(), *run.joins.values()]
    folders = [f"{ROWS_FOLDER}/{name}" for name in growing.released]
    kinds = ("", *(f"/{name}" for name in (*growing.kinds, ROWS)))
    return [growing.part_at(f"{folder}{kind}") for folder in folders for kind in kinds]


def growing_table(run: Run) -> GrowingPart | None:
    """Return the growing table of a run; None of another run."""
    table = run.tables.get("data")
    return table if isinstance(table, GrowingPart) else None


def check_whole(run: Run) -> None:
    """Raise JobError for a growing table whose measurements follow from the values of its first period."""
    growing = growing_table(run)
    if growing is not None and growing.released and growing.structure is not None:
        raise JobError("mechanism.name", f"{growing.job.method.name} on a growing table, whose first period selects the"
                       " measurements of the later ones", "a mechanism with a fixed plan",
                       "see plan/time.json and the ledger for the cost of all periods")  # fmt: skip


def check_charged(run: Run) -> None:
    """Raise BudgetError if the ledger with the charge of the run is not available, or is damaged."""
    _ledger(ledger_dataset(run, chained=True), run.manifest["release"])


def _facts(run: Run, selftest: Sequence[Mapping[str, Any]]) -> Fields:
    """Return the contents of the JSON files of the bundle, by their names without ".json".

    A key is the name of a file in the bundle; `checklist` follows from the others.
    """
    ledger = _ledger(ledger_dataset(run, chained=True), run.manifest["release"])
    parts = stated_parts(run, ENTRIES)
    records = Records(run, parts)
    files: Fields = {
        "records": {"release": run.manifest["release"], "records": records.all()},
        "strategies": {"factors": dict(records.factors.values())},
        "optimality": stated_programs(_fixed_plans(run), {key: name for key, (name, _) in records.factors.items()}),
        "parts": parts,
        "claims": _claims(run, ledger),
        "ledger": ledger,
        "run-files": file_hashes(run),
        "selftest": {"passed": all(check["passed"] for check in selftest), "checks": selftest},
        "versions": {
            "format": FORMAT,
            "made": now(),
            "run": run.manifest["versions"],
            "bundle": versions(),
            "secret": _secret_state(run),
        },
    }
    return files | {"checklist": answers(files)}


def _fixed_plans(run: Run) -> dict[str, Plan]:
    """Return the plan of each table that a matrix mechanism planned; none of a growing table."""
    made = (
        {} if growing_table(run) else {name: part.measurement_plan.evidence_plan for name, part in run.tables.items()}
    )
    return {name: plan for name, plan in made.items() if plan is not None}


def _secret_state(run: Run) -> str:
    """Return what became of the keys of all noise that was drawn: "destroyed", or a warning.

    A growing table has a key for each released row of periods; other runs have one.
    """
    growing = growing_table(run)
    owners = [run] if growing is None else [growing.part_at(f"{ROWS_FOLDER}/{name}") for name in growing.released]
    states = {owner.manifest["secret"] for owner in owners}
    return "destroyed" if states == {"destroyed"} else "STILL THERE: the run was not ended"


def _ledger(dataset: Fields, release: str) -> Fields:
    """Return the dataset's entry on the ledger with its hash chain, without digests and its name (maybe a path)."""
    if not dataset:
        raise BudgetError("privacy.ledger", "it does not contain this release", "the ledger with its charge",
                          "make the bundle where that ledger is available")  # fmt: skip
    rows = [{name: row[name] for name in PUBLIC_FIELDS if name in row} for row in dataset["releases"]]
    totals = {name: dataset[name] for name in TOTALS if name in dataset}
    return {"releases": rows, **totals, "chain": _chain(dataset["chain"], release)}


def _chain(links: Sequence[tuple[Link, str]], release: str) -> Fields:
    """Return the hash chain of the dataset; `opened` contains the hashes that the charge of the release sealed.

    `links` has the entries of the ledger in order, each with the hash after it.
    """
    charge = next(link for link, _ in links if link.entry == "releases" and link.shown["release"] == release)
    shown = [{"entry": link.entry, "shown": link.shown, "hidden": link.hidden, "facts": link.sealed}
             for link, _ in links]  # fmt: skip
    return {"entries": shown, "head": links[-1][1], "opened": {"key": charge.key, "facts": dict(charge.facts)}}


def _claims(run: Run, ledger: Fields) -> Fields:
    """Return the claimed ε at δ of the release and of all releases of its dataset."""
    name, spent = run.manifest["release"], ledger["spent"]
    entry = next(row for row in ledger["releases"] if row["release"] == name)
    return {
        "private": run.manifest["private"],
        "release": {"name": name, **_claim(entry["cost"], run.job.privacy.delta or spent["delta"])},
        "dataset": {"epsilon": spent["epsilon"], "delta": spent["delta"]},
    }


def _claim(cost: Mapping[str, str], delta: float) -> Fields:
    """Return the claim of a ledger's entry: ε at δ, where δ is the additive one, or 0, for pure costs."""
    whole = Cost.from_dict(cost)
    delta = float_above(whole.delta) if whole.is_pure else delta
    epsilon = whole.epsilon_or_inf(delta)
    return {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": delta, "cost": dict(cost)}


def _texts(run: Run) -> dict[str, bytes]:
    """Return the readable files and the scripts."""
    scripts = {name: files("dpscale.audit.evidence").joinpath(name).read_bytes() for name in SCRIPTS}
    readme = README
    if not run.job.is_short and (sides := describe_sides(neighbour_relation(run.job))):
        readme += f"\n## Rows of no unit\n\n{sides.strip()}\n"
    return scripts | {"README.md": readme.encode(), "job.toml": stated_job(run)} | stated_domains(run)


def file_hashes(run: Run) -> dict[str, str]:
    """Return the SHA-256 of the public files of a run: of its plans, values, answers and rows.

    `places` are files and folders of the run directory, `journaled` the folders of values that are drawn outside a
    table.
    """
    growing = growing_table(run)
    folders = ["", *(part.folder for part in (*run.tables.values(), *run.joins.values()))]
    places = {f"{folder}/{name}".lstrip("/") for folder in folders for name in PUBLIC}
    if growing is not None:  # answers of a period have combined values, which are no draws
        places |= {f"{part.folder}/{name}" for part in measured_parts(run) for name in ("answers", "synthetic")}
        places |= {f"{ROWS_FOLDER}/{name}/measurements" for name in growing.released}
    root = f"{slashed(run.path)}/"
    journaled = [
        slashed(journal.folder).removeprefix(root) for part in run.parts.values() for journal in part.journaled
    ]
    places |= {name.split("/")[0] if name.startswith("allocation/") else name for name in journaled}
    files = {slashed(path).removeprefix(root) for name in places for path in _public_files(run.path / name)}
    return {name: _sha256(run.path / name) for name in sorted(files)}


def _public_files(path: Path) -> list[Path]:
    """Return the file at a path, or the finished files below a folder; none if nothing is there."""
    if is_local(path):
        check_real(path)
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file() and not file.name.endswith(".partial")]
    return [path] if path.exists() else []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _written(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Write all files, the envelope last; existing files are removed first, so that a crash leaves no valid bundle."""
    for name in sorted(listed(folder), key=lambda one: one != ENVELOPE):
        remove(folder / name)
    for name, content in sorted(contents.items(), key=lambda one: one[0] == ENVELOPE):
        write_whole(folder / name, content)
    return folder


README = """# Evidence of a private release

The claims in this folder can be checked without the data and without dpscale:

    python recompute.py            exact sums from integers; with `pip install dp-accounting` also its accountants
    dpscale evidence --check .     in addition the hash of every file, and the signature if there is one
    dpscale evidence --check . --ledger HEAD    in addition the head of the ledger (see `dpscale ledger show`)

| file | content |
| --- | --- |
| `records.json` | every draw and selection: factors, sensitivity, noise, cost, and the value file |
| `parts.json` | the parts of the release: bounds of the effect of one unit, cells of attributes, and charged costs |
| `strategies.json` | the distinct integer strategies |
| `optimality.json` | convex programs of small residual spaces, which `dpscale evidence --check` solves by cvxpy |
| `claims.json` | the claimed ε at δ of this release and of all releases of its dataset |
| `ledger.json` | the ledger's entries of the dataset, with their hash chain |
| `checklist.json` | questions after NIST SP 800-226, answered from the other files |
| `job.toml` | the job, without paths, addresses and limits of the engine |
| `domain.toml`, or `domain.NAME.toml` of several tables | the domain |
| `run-files.json` | SHA-256 of plans, measurements, answers and synthetic rows in the run directory |
| `selftest.json` | the audit of the installation that made this bundle |
| `versions.json` | software versions of the run and of the bundle |
| `envelope.json` | DSSE envelope with an in-toto statement: SHA-256 of every other file, and the curator's signature |

The charge sealed the hashes of `job.toml`, of the domains and of `parts.json` in the hash chain of the ledger, before
the first draw. A bundle shows that the listed draws cost what was charged, and that its files agree. A consistent
change of all files is detected only with the curator's public key or the head of the ledger's hash chain. A bundle
cannot show that the list is complete, that the secret was protected, or that no other release of the same data was
made under another ledger; these rest on the curator's signature and on an inspection of the curator's machine.
"""
RISK_README = """All releases of the dataset on the ledger together: {together}.
They protect what `protects` in `ledger.json` states.

With the squared mu of `ledger.json`, the detection rate at a false alarm rate a is at most Phi(Phi⁻¹(a) + mu), for pure
epsilon at most min(e^epsilon a, 1 - e^-epsilon (1 - a)), and an additive delta adds to both (Wasserman and Zhou 2010;
Dong, Roth and Su 2022).
"""
