"""Compare the files of a bundle with each other: job, domain, draws, strategies, ledger, self-test and checklist.

Of the standard library, and in every bundle beside recompute.py, which shows that the draws, as listed, cost what is
claimed. This module shows that no file says something else than the others do: the job's budget and privacy unit and
the ledger's entry, the cells of the domain and the shapes of the strategies, the hash chain of the ledger and its rows.
Whoever changes all files in the same way is not found by that: only a signature, or the head of the ledger's hash
chain, shows who vouches for them.
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
else:  # in a bundle, whose recompute.py made its folder one to import from
    from shapes import is_grouped, shape_faults, strategy_faults

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None  # type: ignore[assignment]

Said = dict[str, Any]
WITHIN = 1e-6  # of a claim: rounding of conversions
SPENT = Fraction(9, 10)  # of its charge, at least, what a mechanism without selections draws
# SHA-256 of the checklist's answers that are the same in every bundle
CONSTANT = "94f803b43a98e53fa389b409937ca05b3a180ec1bea0b3bee041339d5200d1bc"
DERIVED = (
    "Is the release private?", "Which definition?", "ε", "δ", "Whom does it protect?",
    "How much may one unit contribute?", "Which one?", "Where does the randomness come from?",
    "What follows the noise?", "How many releases of this dataset?", "What do they come to?", "Is there a cap?",
    "What became of the secret of the noise?",
)  # fmt: skip


def cross_faults(folder: str | Path) -> list[str]:
    """What one file of a bundle says otherwise than another; nothing where they agree."""
    names = ("draws", "strategies", "events", "ledger", "selftest", "checklist", "run-files", "versions")
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8")) for name in names}
    found = [*_ledger(files), *strategy_faults(files), *_selftest(files["selftest"]), *_files(files), *_charge(files)]
    if tomllib is not None:
        job, domain = (tomllib.loads((Path(folder) / f"{name}.toml").read_text("utf-8")) for name in ("job", "domain"))
        found += [*_job(job, files), *shape_faults(domain, files), *_checklist(job, files)]
    chain = files["ledger"].get("chain")
    if (chain is not None) != (files["versions"]["format"] != "dpscale-evidence/1"):
        found.append("ledger.json has not the hash chain that a bundle of its format has")
    return found + (list(_chain(chain, files, Path(folder))) if chain is not None else [])


def own_entry(files: Said) -> Said:
    """The release's entry on the ledger."""
    return dict(next(row for row in files["ledger"]["releases"] if row["release"] == files["draws"]["release"]))


# ---- the job -------------------------------------------------------------------------------------------------------


def _job(job: Said, files: Said) -> Iterator[str]:
    """The budget, the privacy unit and the noise that were asked for, against the ledger's entry and the draws."""
    row, privacy, data = own_entry(files), job["privacy"], job["data"]
    for name in ("epsilon", "delta"):
        if privacy.get(name) != row.get(name):
            yield f"job.toml asks for another {name} than the ledger's entry has"
    yield from _budget(privacy, row["cost"], files["events"]["release"])
    through = data.get("unit_through")
    unit = through[-1]["unit"] if through else data.get("privacy_unit")
    if row.get("relation") and (row.get("unit"), row["relation"]) != (unit, "add/remove"):
        yield "job.toml has another privacy unit than the ledger's entry"
    bounds = {int(data.get("max_rows_per_unit") or 1), int(files["draws"]["rows_per_unit"]), int(row.get("bound") or 1)}
    if row.get("relation") and len(bounds) > 1:
        yield "job.toml, draws.json and the ledger's entry have different numbers of rows of a unit"
    seeded = "seed" in job.get("engine", {})
    if {seeded, bool(row.get("public")), not files["events"]["private"]} != {seeded}:
        yield "job.toml, events.json and the ledger's entry differ in whether the noise has a seed"
    pure = privacy.get("epsilon") is not None and privacy.get("delta") is None
    if any((draw["laplace"] is not None) != pure for draw in files["draws"]["draws"]):
        yield "job.toml asks for another noise than was drawn"


def _budget(privacy: Said, cost: Said, claim: Said) -> Iterator[str]:
    """A charge above the budget of the job."""
    for name, factor in (("rho", 2), ("privacy_cost", 1)):
        if privacy.get(name) is not None and float(Fraction(cost["gaussian"])) > factor * privacy[name] * (1 + WITHIN):
            yield f"the charge is above the {name} of job.toml"
    if privacy.get("epsilon") is not None and claim["epsilon"] is not None:
        if claim["epsilon"] > privacy["epsilon"] * (1 + WITHIN):
            yield "the claim is above the epsilon of job.toml"
        if claim["delta"] != (privacy.get("delta") or 0.0):
            yield "the claim is at another delta than job.toml has"


def _charge(files: Said) -> Iterator[str]:
    """Draws that come to much less than was charged for them: more noise is listed than there is."""
    share = _share(files)
    if share < SPENT and not files["draws"]["selections"]:
        yield f"the draws come to {float(share):.3g} of what was charged"


def _share(files: Said) -> Fraction:
    """What the draws and selections come to, as a share of the charge; 1 where they are in different currencies."""
    cost, events = own_entry(files)["cost"], files["events"]["release"]["events"]
    kinds = {"gaussian": "gaussian", "laplace": "pure", "pure": "pure"}
    for kind in ("gaussian", "pure"):
        own = [one for one in events if kinds.get(one["kind"]) == kind]
        if Fraction(cost.get(kind) or 0) and len(own) == len([one for one in events if one["kind"] != "selection"]):
            return sum((Fraction(one["cost"]) * int(one["count"]) for one in own), Fraction(0)) / Fraction(cost[kind])
    return Fraction(1)


def unverified(folder: str | Path) -> list[str]:
    """What these checks take as the bundle says it, a sentence each."""
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8"))
             for name in ("draws", "strategies", "events", "ledger")}  # fmt: skip
    factors, found = files["strategies"]["factors"], []
    parts = [part for one in factors.values() for part in (one, *one.get("levels", ()))]
    if alone := sum("columns" in part for part in parts):
        found.append(f"the sensitivities of {alone} strategies, which are known by the norms of their columns alone")
    if tomllib is None:
        return [*found, "job, domain and checklist, which takes Python 3.11 or later"]
    domain = tomllib.loads((Path(folder) / "domain.toml").read_text("utf-8"))
    if grouped := sum(is_grouped(draw, factors, domain["attributes"]) for draw in files["draws"]["draws"]):
        found.append(f"the cells of {grouped} draws of an adaptive mechanism, which are groups of the domain's cells")
    if files["draws"]["selections"] and (share := _share(files)) < Fraction(1, 2):
        found.append(f"the noise: draws beside selections come to {float(share):.3g} of the charge alone")
    return found


# ---- the ledger ----------------------------------------------------------------------------------------------------


def _ledger(files: Said) -> Iterator[str]:
    """What ledger.json says of the dataset as a whole, against its own rows."""
    ledger = files["ledger"]
    rows, cap = ledger["releases"], ledger.get("cap")
    said = [text for row in ([cap] if cap else []) + rows if (text := protected(row))]
    tables = {row.get("unit_table") for row in rows if cap and row.get("unit") == cap.get("unit")}
    if said and len(tables) == 1 and cap and cap.get("relation") and not cap.get("unit_table"):
        said[0] = protected({**cap, "unit_table": tables.pop()})
    if ledger.get("protects") != (said[0] if said else None):
        yield "ledger.json says of another privacy unit that it is protected than its rows do"
    pure = all(not Fraction(row["cost"].get(name) or 0) for row in rows for name in ("gaussian", "zcdp"))
    currency = (cap or {}).get("currency") or ("pure" if pure else "gdp")
    if not str(ledger["currency"]).startswith(f"{currency}:"):
        yield "ledger.json adds up in another currency than its cap or its rows have"
    if cap and cap["delta"] != ledger["spent"]["delta"]:
        yield "ledger.json has its total at another delta than its cap"


def protected(row: Said) -> str:
    """The privacy unit of an entry, in words; nothing for an older one."""
    if not row.get("relation"):
        return ""
    name = row.get("unit") if row.get("unit_table") is None else f"{row['unit_table']}.{row['unit']}"
    return f"{'one row' if row.get('unit') is None else f'all rows of one {name}'} ({row['relation']})"


def chained(content: Any) -> str:
    """SHA-256 of canonical JSON: how a link of the ledger's hash chain is made."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _chain(chain: Said, files: Said, folder: Path) -> Iterator[str]:
    """Links that do not follow, entries that are not the rows of ledger.json, and hashes of the domain and the plan."""
    before = ""
    for link in chain["links"]:
        before = chained([before, link["entry"], link["shown"], link["hidden"], link["facts"]])
    if before != chain["head"]:
        yield "ledger.json has a hash chain that does not lead to its head"
    ledger = files["ledger"]
    rows = {"caps": [*ledger["former_caps"], *filter(None, [ledger.get("cap")])], "releases": ledger["releases"]}
    for kind, listed in rows.items():
        shown = [link["shown"] for link in chain["links"] if link["entry"] == kind]
        if len(shown) != len(listed) or not all(map(_same, listed, shown)):
            yield f"ledger.json has other {kind} than its hash chain"
    opened = chain["opened"]
    own = [link for link in chain["links"] if link["shown"].get("release") == files["draws"]["release"]]
    if [link["facts"] for link in own if link["entry"] == "releases"] != [chained([opened["key"], opened["facts"]])]:
        yield "ledger.json has other hashes of the domain and the plan than its hash chain"
    plan = [f"{name}\0{one}\n" for name, one in sorted(files["run-files"].items()) if name.startswith("plan/")]
    here = {"domain": hashlib.sha256((folder / "domain.toml").read_bytes()).hexdigest(),
            "plan": hashlib.sha256("".join(plan).encode()).hexdigest()}  # fmt: skip
    yield from (f"the {name} is not the one that was charged for" for name, one in opened["facts"].items()
                if here.get(name) != one)  # fmt: skip


def _same(row: Said, shown: Said) -> bool:
    """Whether a row of ledger.json is the entry of a link; what older entries left out is filled in there."""
    for name, value in shown.items():
        filled = value is None and name in ("public", "currency")
        if not filled and row.get(name) != (json.loads(value) if name == "cost" else value):
            return False
    return True


# ---- the rest ------------------------------------------------------------------------------------------------------


def _selftest(selftest: Said) -> Iterator[str]:
    names = [one["name"] for one in selftest["checks"]]
    if (
        not names
        or len(set(names)) < len(names)
        or not all(isinstance(one["passed"], bool) for one in selftest["checks"])
    ):
        yield "selftest.json has no checks, or one twice"
    elif selftest["passed"] is not all(one["passed"] for one in selftest["checks"]):
        yield "selftest.json says otherwise than its checks whether it passed"


def _files(files: Said) -> Iterator[str]:
    """Files of draws that the run does not have."""
    lacking = {f"measurements/{draw['file']}" for draw in files["draws"]["draws"]} - set(files["run-files"])
    if lacking:
        yield f"run-files.json lacks {min(lacking)}, which draws.json names"


def _checklist(job: Said, files: Said) -> Iterator[str]:
    """Answers that do not follow from the other files; those that are the same in every bundle, by their hash."""
    rows, expected = files["checklist"], _answers(job, files)
    answers = {row["question"]: row["answer"] for row in rows}
    for question, pattern in expected.items():
        if not re.fullmatch(pattern, str(answers.get(question))):
            yield f"checklist.json answers {question!r} otherwise than the other files"
            return
    fixed = [{**row, "answer": None} if row["question"] in DERIVED else row for row in rows]
    if chained(fixed) != CONSTANT:
        yield "checklist.json has other answers than dpscale writes"


def _answers(job: Said, files: Said) -> Mapping[str, str]:
    """Patterns of the answers that follow from the other files."""
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
