"""Writing of an evidence bundle: a flat folder DIR/evidence of public or released facts, the envelope last.

*Records of evidence.*
There is one for every draw and selection of a run, from its value files and stored decisions. Noise is read from the
label of each stored value, not from the plan. A file without a decision and a missing measurement are refused, so the
list contains exactly the draws. All records have one form:

    part, entry          name of the part, and end of the id of the ledger's entry that pays
    decision, place      number of the decision among those of the part, and of the draw in it
    file                 value file in the run directory
    factors, bound       strategies by name, and the bound of the effect of a unit on the counts (`runs.statement`)
    squared_l2, l1       sensitivity to one unit of the release
    multiplier, variance or laplace
                         noise
    cost                 exact μ² or ε

A selection has `count`, `range` and `cost` in place of the noise. The fields `group`, `path`, `row` and `threshold` say
how draws compose (audit.evidence.sensitivities).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpscale.audit.evidence.checklist import answers
from dpscale.audit.evidence.envelope import ENVELOPE, Signer, sealed
from dpscale.audit.evidence.optimality import stated_programs
from dpscale.base.errors import BudgetError, JobError
from dpscale.domain.public_totals import is_condition
from dpscale.job.neighbours import describe_sides, neighbour_relation
from dpscale.ledger.chain import Link
from dpscale.measurement.value_files import NAME, measured_draws
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import Decision, MeasurementRequest
from dpscale.plans.plan import Plan, factor_fields
from dpscale.privacy.accounting import Cost, float_above
from dpscale.privacy.attack_risk import rates_text, total_bounds
from dpscale.privacy.draws import GaussianDraw, LaplaceDraw, recounted
from dpscale.privacy.selection import epsilon_below
from dpscale.runs.manifest import check_output, disk_errors, versions
from dpscale.runs.periods.growing import FOLDER as PERIODS, ROWS, GrowingPart
from dpscale.runs.run import ENTRIES, DrawFacts, Journaled, Part, Run, now
from dpscale.runs.runner import ledger_dataset
from dpscale.runs.stage import STAGES
from dpscale.runs.statement import (
    ROWS as ROW_BOUND,
    Facts,
    canonical,
    stated_domains,
    stated_job,
    stated_parts,
    votes_on,
)
from dpscale.runs.table import SEARCH_FILE, TablePart
from dpscale.storage.files import check_real, is_local, listed, present, remove, store_errors, write_whole
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


def refused(got: str) -> JobError:
    return JobError("measurements", got, "the unmodified files of the run", "restore them")


@dataclass
class Records:
    """List of records, with the distinct strategies that they name.

    Attributes
    ----------
    run : Run
    parts : mapping of str to dict
        Facts of the parts.
    factors : dict
        Name and fields of each strategy by its digest.
    """

    run: Run
    parts: Mapping[str, Facts]
    factors: dict[str, tuple[str, Fields]] = field(default_factory=dict)

    def all(self) -> list[Fields]:
        """Return the records of all parts.

        Raises
        ------
        JobError
            If the files of a part are not those of its decisions, or a part has a cost and no facts.
        """
        self._check_folders()
        found = list[Fields]()
        for name, facts in self.parts.items():
            if "bounds" not in facts:
                raise JobError("evidence", f"the part {name}", "a part that states bounds of its draws",
                               "add facts_of_draws to it")  # fmt: skip
            found += self._of_part(self.run.parts[name], facts)
        return found

    def _check_folders(self) -> None:
        """Raise JobError for a folder beside those of parts that belongs to no part."""
        parts = self.run.parts.values()
        folders = {part.folder for part in parts}
        for place in {part.folder.partition("/")[0] for part in parts if part.journaled and "/" in part.folder}:
            for name in sorted(listed(self.run.path / place)):
                if (self.run.path / place / name).is_dir() and f"{place}/{name}" not in folders:
                    raise refused(f"{place}/{name} belongs to no part")

    def _of_part(self, part: Part, facts: Facts) -> Iterator[Fields]:
        """Yield the records of a part: draws of its tables, searches and journals.

        Draws of a growing table state the row of its matrix over the periods that they belong to.
        """
        if isinstance(part, GrowingPart):
            for row, name in enumerate(part.released):
                for record in self._measured(part.part_at(f"{PERIODS}/{name}"), part.name, facts):
                    yield record | {"row": row}
            return
        if isinstance(part, TablePart):
            yield from self._measured(part, part.name, facts)
            yield from self._searched(part, facts)
        for journaled in part.journaled:
            yield from self._journaled(part, journaled, facts)

    # ---- measurements of a plan --------------------------------------------------------------------------------------

    def _measured(self, table: TablePart, part: str, facts: Facts) -> Iterator[Fields]:
        """Yield the draws and selections of all decisions of a table."""
        store, decisions = table.measurements, list(table.measurements.decisions())
        store.check_files(decisions)
        for decision in decisions:
            for name, place, request, label in store.drawn(decision):
                where = {"part": part, "entry": "", "decision": decision.round, "place": place}
                yield self._record(where | {"file": self._path(store.folder / name)}, label, request, facts)
        for decision in decisions:
            yield from ({"part": part, "entry": "", **selection} for selection in _selections(decision))

    def _record(self, where: Fields, label: Fields, request: MeasurementRequest, facts: Facts) -> Fields:
        """Return the record of a measurement: where it is, what it measures, its noise, sensitivity and cost.

        `where` has the first fields of the record, `label` its noise, and `facts` the bounds and steps of the part.
        """
        block = request.block
        named = {"attributes": list(block.attributes), "factors": [self._name(factor) for factor in block.factors],
                 "strategy": label.get("strategy"), "bound": ROW_BOUND}  # fmt: skip
        norms = int(block.squared_l2_sensitivity), int(block.l1_sensitivity)
        return with_cost(where | named | _noise(label), facts["bounds"][ROW_BOUND], facts["steps"], norms)

    def _name(self, factor: Factor) -> str:
        """Return the name of a strategy."""
        if factor.digest not in self.factors:
            self.factors[factor.digest] = f"f{len(self.factors)}", factor_fields(factor)
        return self.factors[factor.digest][0]

    def _path(self, file: Path) -> str:
        """Return a file's path in the run directory."""
        return slashed(file).removeprefix(f"{slashed(self.run.path)}/")

    # ---- draws of the journal ----------------------------------------------------------------------------------------

    def _journaled(self, part: Part, journaled: Journaled, facts: Facts) -> Iterator[Fields]:
        """Yield the draws and selections of a folder of the journal, and refuse files of no draw.

        The name of a file states its decision, its first draw and the end of its draws. The journal has the facts of
        each draw that must be there; its number of values may be open (None).
        """
        files, seen = sorted(listed(journaled.folder)) if present(journaled.folder) else [], set[str]()
        for name in files:
            # other files of the folder must be known
            if (parts_of_name := NAME.fullmatch(name)) is None:
                if name not in journaled.others:
                    raise refused(f"{name} of {part.name} belongs to no draw")
                continue
            draws = list(measured_draws(journaled.folder / name))
            if [int(parts_of_name[2]), int(parts_of_name[3])] != [0, len(draws)]:
                raise refused(f"{name} of {part.name} does not contain the draws in its name")
            for place, (label, values) in enumerate(draws):
                drawn = _named(journaled, label)
                if drawn is None:
                    raise refused(f"{name} of {part.name} belongs to no draw")
                # noisy values are integers
                if drawn.values not in (None, values.size) or not (values % 1 == 0).all():
                    raise refused(f"{name} of {part.name} has values that differ from its draw")
                seen.add(journaled.name(label))
                where = {"part": part.name, "entry": ENTRIES[journaled.entry], "decision": int(parts_of_name[1]),
                         "place": place, "file": self._path(journaled.folder / name)}  # fmt: skip
                yield _journaled_record(where, label, drawn, facts)
        # every draw that was planned must have a file
        if missing := sorted(set(journaled.draws) - seen):
            raise refused(f"{missing[0]} of {part.name} is missing")
        yield from (
            {"part": part.name, "entry": ENTRIES[journaled.entry], **selection} for selection in journaled.selections
        )

    # ---- searches ----------------------------------------------------------------------------------------------------

    def _searched(self, table: TablePart, facts: Facts) -> Iterator[Fields]:
        """Yield the draws of the searches for cells, whose noise is in the record of their results.

        A search with a tree draws at each node of the tree, with its own multiplier and variance; a node is named by
        the bits of its path from the root.

        `bound` names the bound of a unit's effect: on rows, or on the votes for the values of an attribute.

        `found` is the stored result of a search for the cells of an attribute. Without a tree it is one draw, or
        `levels` of them. A vote of the units has a bound of its own.
        """
        place = 0
        for attribute, found in table.searched.items():
            noise, name = found["measurement"], votes_on(attribute)
            common: Fields = {"factors": [], "strategy": None, "bound": ROW_BOUND}
            if "vote" in noise:
                common |= {"bound": name, "votes": ROW_BOUND}
            if "threshold" in noise:
                common["threshold"] = noise["threshold"]
            # a single draw, with the number of its levels
            draws = [noise | {"count": int(noise.get("levels", 1))}]
            # or one at each node of a tree
            if "nodes" in found and "variance" not in noise:
                common["group"] = attribute
                draws = [
                    {"path": f"{int(index):0{level}b}" if level else "", "multiplier": multiplier, "variance": variance}
                    for level, index, multiplier, variance, _ in found["nodes"]
                ]
            for noise_of_draw in draws:
                # all searches of a table are decision 0, with consecutive places
                where = {"part": table.name, "entry": ENTRIES["discovery"], "decision": 0, "place": place,
                         "file": self._path(table.path / SEARCH_FILE)}  # fmt: skip
                more = {name: noise_of_draw[name] for name in ("count", "path") if name in noise_of_draw}
                bound = facts["bounds"][common["bound"]]
                yield with_cost(where | common | more | _noise(noise_of_draw), bound, facts["steps"])
                place += 1


def _named(journaled: Journaled, label: Mapping[str, Any]) -> DrawFacts | None:
    """Return the facts of the draw of a label; None for a label of no draw."""
    try:
        return journaled.draws.get(journaled.name(label))
    except (KeyError, TypeError):
        return None


def _journaled_record(where: Fields, label: Fields, drawn: DrawFacts, facts: Facts) -> Fields:
    """Return the record of a draw of the journal, with its sensitivity and cost.

    `drawn.bound` is the changes by one unit, or the name of a bound of the part; draws of one group change together.
    """
    bound = facts["bounds"][drawn.bound] if isinstance(drawn.bound, str) else drawn.bound
    named: Fields = {"factors": [], "strategy": None, "bound": drawn.bound, "count": drawn.count}
    named |= {"group": drawn.group} if drawn.group is not None else {}
    noise = label.get("noise", label)
    return with_cost(where | named | _noise(noise), bound, facts["steps"])


def _noise(label: Mapping[str, Any]) -> Fields:
    """Return the noise of a label."""
    return {name: str(label[name]) for name in ("multiplier", "variance", "laplace") if label.get(name) is not None}


def with_cost(record: Fields, bound: Facts, steps: int, norms: tuple[int, int] | None = None) -> Fields:
    """Return a record with its sensitivity and cost.

    Parameters
    ----------
    record : dict
    bound : dict
        Changes of the counts by one unit: `changes` has alternatives, each with pairs (number of counts, change).
    steps : int
        Number of neighbours of the part that connect two of the release.
    norms : tuple of int, optional
        Largest squared L2 norm and largest L1 norm of a column of the strategy; without a strategy counts are measured.
    """
    squared = max(sum(number * change**2 for number, change in alternative) for alternative in bound["changes"])
    absolute = max(sum(number * change for number, change in alternative) for alternative in bound["changes"])
    if norms is not None:
        squared, absolute = norms[0] * absolute**2, norms[1] * absolute
    squared, absolute = squared * steps**2, absolute * steps
    cost = noise_cost(record, squared, absolute)
    return record | {"squared_l2": str(squared), "l1": str(absolute), "cost": str(cost)}


def noise_cost(record: Fields, squared: int, absolute: int) -> Fraction:
    """Return the cost of a draw of a squared L2 and an L1 sensitivity."""
    law, name = (LaplaceDraw, "laplace") if "laplace" in record else (GaussianDraw, "variance")
    draw = law(int(record["multiplier"]), int(record[name]), Fraction(0))
    return recounted(draw, squared, absolute, 1)


def _selections(decision: Decision) -> Iterator[Fields]:
    """Yield the selections of a round as one record: of equal ones, or of an unknown number with their total cost."""
    if not decision.selection_cost:
        return
    fields = decision.to_dict()
    beta, count = Fraction(fields.get("beta") or 0), len(fields.get("chosen") or ())
    if beta and beta * count == decision.selection_cost:
        yield {"decision": decision.round, "count": count, "cost": str(beta), "range": str(epsilon_below(beta))}
    else:
        yield {"decision": decision.round, "count": 1, "cost": str(decision.selection_cost), "range": None}


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
    folders = [f"{PERIODS}/{name}" for name in growing.released]
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
    if growing_table(run):
        return {}
    plans = {name: part.measurement_plan.evidence_plan for name, part in run.tables.items()}
    return {name: plan for name, plan in plans.items() if plan is not None}


def _secret_state(run: Run) -> str:
    """Return what became of the keys of all noise that was drawn: "destroyed", or a warning.

    A growing table has a key for each released row of periods; other runs have one.
    """
    growing = growing_table(run)
    owners = [run] if growing is None else [growing.part_at(f"{PERIODS}/{name}") for name in growing.released]
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
    """Return the SHA-256 of the public files of a run, by path: of its plans, values, answers and rows."""
    growing = growing_table(run)
    folders = ["", *(part.folder for part in (*run.tables.values(), *run.joins.values()))]
    # files and folders of the run directory
    places = {f"{folder}/{name}".lstrip("/") for folder in folders for name in PUBLIC}
    if growing is not None:  # answers of a period have combined values, which are no draws
        places |= {f"{part.folder}/{name}" for part in measured_parts(run) for name in ("answers", "synthetic")}
        places |= {f"{PERIODS}/{name}/measurements" for name in growing.released}
    root = f"{slashed(run.path)}/"
    # folders of values that are drawn outside a table
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
    for name in sorted(listed(folder), key=lambda name: name != ENVELOPE):  # the envelope first
        remove(folder / name)
    for name, content in sorted(contents.items(), key=lambda file: file[0] == ENVELOPE):
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
