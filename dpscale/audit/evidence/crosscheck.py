"""Compare the files of a bundle with each other: job, domain, draws, strategies, ledger, self-test and checklist.

The module uses only the standard library and is included in every bundle with recompute.py, which shows that the draws,
as listed, have the claimed cost. This module shows that the files are consistent: the job's budget and privacy unit
with the ledger's entry, the cells of the domain with the shapes of the strategies, the hash chain of the ledger with
its rows. A consistent change of all files is not detected; only a signature, or the head of the ledger's hash chain,
shows who made them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence.shapes import is_grouped, shape_faults, strategy_faults
else:  # in a bundle, where recompute.py has put the folder on sys.path
    from shapes import is_grouped, shape_faults, strategy_faults

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None  # type: ignore[assignment]

Fields = dict[str, Any]
WITHIN = 1e-6  # relative tolerance of a claim: rounding of conversions
SPENT = Fraction(9, 10)  # least share of the charge that the draws of a mechanism without selections cost
# SHA-256 of the checklist's answers that are equal in every bundle
CONSTANT = "94f803b43a98e53fa389b409937ca05b3a180ec1bea0b3bee041339d5200d1bc"
DERIVED = (
    "Is the release private?", "Which definition?", "ε", "δ", "Whom does it protect?",
    "How much may one unit contribute?", "Which one?", "Where does the randomness come from?",
    "What follows the noise?", "How many releases of this dataset?", "What do they come to?", "Is there a cap?",
    "What became of the secret of the noise?",
)  # fmt: skip


def cross_faults(folder: str | Path) -> list[str]:
    """Return contradictions between the files of a bundle; none if they agree."""
    names = ("draws", "strategies", "events", "ledger", "selftest", "checklist", "run-files", "versions")
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8")) for name in names}
    found = [*_ledger(files), *strategy_faults(files), *_selftest(files["selftest"]), *_files(files), *_charge(files)]
    if tomllib is not None:
        job, domain = (tomllib.loads((Path(folder) / f"{name}.toml").read_text("utf-8")) for name in ("job", "domain"))
        found += [*_job(job, files), *shape_faults(domain, files), *_checklist(job, files)]
    chain = files["ledger"].get("chain")
    if (chain is not None) != (files["versions"]["format"] != "dpscale-evidence/1"):
        found.append("ledger.json has a hash chain although its format has none, or lacks it")
    return found + (list(_chain(chain, files, Path(folder))) if chain is not None else [])


def own_entry(files: Fields) -> Fields:
    """Return the release's entry on the ledger."""
    return dict(next(row for row in files["ledger"]["releases"] if row["release"] == files["draws"]["release"]))


# ---- the job -------------------------------------------------------------------------------------------------------


def _job(job: Fields, files: Fields) -> Iterator[str]:
    """Yield differences of the requested budget, privacy unit and noise from the ledger's entry and the draws."""
    row, privacy, data = own_entry(files), job["privacy"], job["data"]
    for name in ("epsilon", "delta"):
        if privacy.get(name) != row.get(name):
            yield f"job.toml and the ledger's entry have different values of {name}"
    yield from _budget(privacy, row["cost"], files["events"]["release"])
    through = data.get("unit_through")
    unit = through[-1]["unit"] if through else data.get("privacy_unit")
    if row.get("relation") and (row.get("unit"), row["relation"]) != (unit, "add/remove"):
        yield "job.toml and the ledger's entry have different privacy units"
    bounds = {int(data.get("max_rows_per_unit") or 1), int(files["draws"]["rows_per_unit"]), int(row.get("bound") or 1)}
    if row.get("relation") and len(bounds) > 1:
        yield "job.toml, draws.json and the ledger's entry have different numbers of rows per unit"
    seeded = "seed" in job.get("engine", {})
    if {seeded, bool(row.get("public")), not files["events"]["private"]} != {seeded}:
        yield "job.toml, events.json and the ledger's entry disagree on whether the noise has a seed"
    pure = privacy.get("epsilon") is not None and privacy.get("delta") is None
    if any((draw["laplace"] is not None) != pure for draw in files["draws"]["draws"]):
        yield "job.toml requests a different noise distribution than was drawn"


def _budget(privacy: Fields, cost: Fields, claim: Fields) -> Iterator[str]:
    """Yield charges above the budget of the job."""
    for name, factor in (("rho", 2), ("privacy_cost", 1)):
        if privacy.get(name) is not None and float(Fraction(cost["gaussian"])) > factor * privacy[name] * (1 + WITHIN):
            yield f"the charge is above the {name} of job.toml"
    if privacy.get("epsilon") is not None and claim["epsilon"] is not None:
        if claim["epsilon"] > privacy["epsilon"] * (1 + WITHIN):
            yield "the claim is above the epsilon of job.toml"
        if claim["delta"] != (privacy.get("delta") or 0.0):
            yield "the claim has a different delta than job.toml"


def _charge(files: Fields) -> Iterator[str]:
    """Yield a fault if the draws cost much less than was charged, that is, if the listed noise is too large."""
    share = _share(files)
    if share < SPENT and not files["draws"]["selections"]:
        yield f"the draws cost only {float(share):.3g} of the charge"


def _share(files: Fields) -> Fraction:
    """Return the cost of draws and selections as a share of the charge; 1 if their currencies differ."""
    cost, events = own_entry(files)["cost"], files["events"]["release"]["events"]
    kinds = {"gaussian": "gaussian", "laplace": "pure", "pure": "pure"}
    for kind in ("gaussian", "pure"):
        own = [one for one in events if kinds.get(one["kind"]) == kind]
        if Fraction(cost.get(kind) or 0) and len(own) == len([one for one in events if one["kind"] != "selection"]):
            return sum((Fraction(one["cost"]) * int(one["count"]) for one in own), Fraction(0)) / Fraction(cost[kind])
    return Fraction(1)


def unverified(folder: str | Path) -> list[str]:
    """Return a sentence for each fact that these checks accept without verification."""
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8"))
             for name in ("draws", "strategies", "events", "ledger")}  # fmt: skip
    factors, found = files["strategies"]["factors"], []
    parts = [part for one in factors.values() for part in (one, *one.get("levels", ()))]
    if alone := sum("columns" in part for part in parts):
        found.append(f"the sensitivities of {alone} strategies, of which the bundle contains only column norms")
    if tomllib is None:
        return [*found, "job, domain and checklist, which requires Python 3.11 or later"]
    domain = tomllib.loads((Path(folder) / "domain.toml").read_text("utf-8"))
    if grouped := sum(is_grouped(draw, factors, domain["attributes"]) for draw in files["draws"]["draws"]):
        found.append(f"the cells of {grouped} draws of an adaptive mechanism, which are groups of the domain's cells")
    if files["draws"]["selections"] and (share := _share(files)) < Fraction(1, 2):
        found.append(f"the noise: the draws other than selections cost only {float(share):.3g} of the charge")
    return found


# ---- the ledger ----------------------------------------------------------------------------------------------------


def _ledger(files: Fields) -> Iterator[str]:
    """Yield contradictions between the totals in ledger.json and its rows."""
    ledger = files["ledger"]
    rows, cap = ledger["releases"], ledger.get("cap")
    units = [text for row in ([cap] if cap else []) + rows if (text := protected(row))]
    tables = {row.get("unit_table") for row in rows if cap and row.get("unit") == cap.get("unit")}
    if units and len(tables) == 1 and cap and cap.get("relation") and not cap.get("unit_table"):
        units[0] = protected({**cap, "unit_table": tables.pop()})
    if ledger.get("protects") != (units[0] if units else None):
        yield "ledger.json and its rows have different privacy units"
    pure = all(not Fraction(row["cost"].get(name) or 0) for row in rows for name in ("gaussian", "zcdp"))
    currency = (cap or {}).get("currency") or ("pure" if pure else "gdp")
    if not str(ledger["currency"]).startswith(f"{currency}:"):
        yield "ledger.json has its total in a different currency than its cap or its rows"
    if cap and cap["delta"] != ledger["spent"]["delta"]:
        yield "ledger.json has its total at a different delta than its cap"


def protected(row: Fields) -> str:
    """Return the privacy unit of an entry in words; empty for an older entry."""
    if not row.get("relation"):
        return ""
    name = row.get("unit") if row.get("unit_table") is None else f"{row['unit_table']}.{row['unit']}"
    return f"{'one row' if row.get('unit') is None else f'all rows of one {name}'} ({row['relation']})"


def chained(content: Any) -> str:
    """Return the SHA-256 of canonical JSON, a link of the ledger's hash chain."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _chain(chain: Fields, files: Fields, folder: Path) -> Iterator[str]:
    """Yield broken links, entries that are not the rows of ledger.json, and wrong hashes of the domain and the plan."""
    before = ""
    for link in chain["links"]:
        before = chained([before, link["entry"], link["shown"], link["hidden"], link["facts"]])
    if before != chain["head"]:
        yield "ledger.json has a hash chain that does not end in its head"
    ledger = files["ledger"]
    rows = {"caps": [*ledger["former_caps"], *filter(None, [ledger.get("cap")])], "releases": ledger["releases"]}
    for kind, listed in rows.items():
        shown = [link["shown"] for link in chain["links"] if link["entry"] == kind]
        if len(shown) != len(listed) or not all(map(_same, listed, shown)):
            yield f"ledger.json and its hash chain have different {kind}"
    opened = chain["opened"]
    own = [link for link in chain["links"] if link["shown"].get("release") == files["draws"]["release"]]
    if [link["facts"] for link in own if link["entry"] == "releases"] != [chained([opened["key"], opened["facts"]])]:
        yield "ledger.json and its hash chain have different hashes of the domain and the plan"
    plan = [f"{name}\0{one}\n" for name, one in sorted(files["run-files"].items()) if name.startswith("plan/")]
    here = {"domain": hashlib.sha256((folder / "domain.toml").read_bytes()).hexdigest(),
            "plan": hashlib.sha256("".join(plan).encode()).hexdigest()}  # fmt: skip
    yield from (f"the {name} differs from the one that was charged" for name, one in opened["facts"].items()
                if here.get(name) != one)  # fmt: skip


def _same(row: Fields, shown: Fields) -> bool:
    """Return whether a row of ledger.json is the entry of a link; the row fills in fields that older entries omit."""
    for name, value in shown.items():
        filled = value is None and name in ("public", "currency")
        if not filled and row.get(name) != (json.loads(value) if name == "cost" else value):
            return False
    return True


# ---- the rest ------------------------------------------------------------------------------------------------------


def _selftest(selftest: Fields) -> Iterator[str]:
    names = [one["name"] for one in selftest["checks"]]
    if (
        not names
        or len(set(names)) < len(names)
        or not all(isinstance(one["passed"], bool) for one in selftest["checks"])
    ):
        yield "selftest.json has no checks, or a duplicate or invalid one"
    elif selftest["passed"] is not all(one["passed"] for one in selftest["checks"]):
        yield "selftest.json and its checks disagree on whether it passed"


def _files(files: Fields) -> Iterator[str]:
    """Yield a fault if the run lacks a file of a draw."""
    lacking = {f"measurements/{draw['file']}" for draw in files["draws"]["draws"]} - set(files["run-files"])
    if lacking:
        yield f"run-files.json lacks {min(lacking)}, which draws.json refers to"


def _checklist(job: Fields, files: Fields) -> Iterator[str]:
    """Yield answers that contradict the other files; answers equal in every bundle are checked by their hash."""
    rows, expected = files["checklist"], _answers(job, files)
    answers = {row["question"]: row["answer"] for row in rows}
    for question, pattern in expected.items():
        if not re.fullmatch(pattern, str(answers.get(question))):
            yield f"checklist.json contradicts the other files on {question!r}"
            return
    fixed = [{**row, "answer": None} if row["question"] in DERIVED else row for row in rows]
    if chained(fixed) != CONSTANT:
        yield "checklist.json has answers that dpscale does not write"


def _answers(job: Fields, files: Fields) -> Mapping[str, str]:
    """Return patterns of the answers that follow from the other files."""
    draws, claim, whole = files["draws"], files["events"]["release"], files["events"]["dataset"]
    private, cap, unit = files["events"]["private"], files["ledger"].get("cap"), job["data"].get("privacy_unit")
    pure = job["privacy"].get("epsilon") is not None and job["privacy"].get("delta") is None
    law = "discrete Laplace" if pure else "discrete Gaussian"
    count = sum(int(one["count"]) for one in draws["selections"])
    choices = f"; {count} selections by the exponential mechanism, on whole scores" if count else ""
    noise = f": {len(draws['draws'])} measurements, {law} noise on whole numbers{choices}"
    name = job["mechanism"]["name"]
    bound = job["data"].get("max_rows_per_unit")
    texts = {
        "Is the release private?": "yes" if private else "NO: the noise follows from a seed that anybody can try",
        "Which definition?": "(ε, δ)-differential privacy" if claim["delta"] else "pure ε-differential privacy",
        "ε": "none" if claim["epsilon"] is None else f"{claim['epsilon']:.9g}",
        "δ": f"{claim['delta']:g}",
        "Whom does it protect?": "one row" if unit is None else f"all rows with one value of the column {unit!r}",
        "How much may one unit contribute?": f"at most {bound} of its rows are counted" if bound else "one row",
        "Where does the randomness come from?": "256 bits of the operating system" if private
        else "a seed in the job file: for tests only",
        "How many releases of this dataset?": str(len(files["ledger"]["releases"])),
        "What do they come to?": "unbounded" if whole["epsilon"] is None
        else f"ε = {whole['epsilon']:.9g} at δ = {whole['delta']:g}",
        "Is there a cap?": f"ε = {cap['epsilon']:g} at δ = {cap['delta']:g}" if cap
        else "none: the ledger records and refuses nothing",
    }  # fmt: skip
    mechanism = "[a-z0-9+-]+" if name == "auto" else re.escape(name)
    secrets = ("destroyed", "STILL THERE: the run was not ended")
    return {question: re.escape(text) for question, text in texts.items()} | {
        "Which one?": f"{mechanism}(/[0-9]+)?{re.escape(noise)}",
        "What follows the noise?": "[a-z-]+: from released values alone",
        "What became of the secret of the noise?": "|".join(map(re.escape, secrets)),
    }
