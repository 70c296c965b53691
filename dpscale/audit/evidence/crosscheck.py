"""Compare the files of a bundle with each other: job, domain, draws, strategies, ledger, self-test and checklist.

The module uses only the standard library and is included in every bundle with recompute.py, which shows that the draws,
as listed, have the claimed cost. This module shows that the files are consistent: the job's budget and privacy unit
with the ledger's entry, the cells of the domain with the shapes of the strategies, the hash chain of the ledger with
its rows. A consistent change of all files is found only by a signature or the head of the ledger's hash chain.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence import shapes
    from dpscale.audit.evidence.sensitivities import check_draws, components, label, mu_of_epsilon, statistic_faults
else:  # in a bundle, where recompute.py has put the folder on sys.path
    import shapes
    from sensitivities import check_draws, components, label, mu_of_epsilon, statistic_faults

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None  # type: ignore[assignment]

Fields = dict[str, Any]
WITHIN = 1e-6  # relative tolerance of a claim: rounding of conversions
SPENT = Fraction(9, 10)  # least share of the charge that the draws of a mechanism without selections cost
SHARES = 1e-3  # relative tolerance of the share of a component: rounding of conversions and of shares
TABLES, SEARCHED, GROWING = "dpscale-evidence/3", "dpscale-evidence/4", "dpscale-evidence/5"  # searches; growing tables
# SHA-256 of the checklist's answers that are equal in every bundle, by format
CONSTANTS = {
    TABLES: "dbb93e0f992ab4ebb547c26243c511e774f3a3384fddd9ef7a1b708cc646054b",
    SEARCHED: "c951144d4a4fb7ff94a8cdd534c9afdfa3ceef36e7569a8ff5941201df57298c",
    GROWING: "ce5db5a8b5359b29a2382aae1bb326ebb8c163d2f434f236d0e3a14ce9859e29",
}
VALUES = re.compile(r"(^|/)measurements/[^/]+\.parquet$|^links/[^/]+/\d{3,}-\d{8}-\d{8}\.parquet$")
UNNAMED, OTHER = ("auto",), ("selection", "delta")  # settings that choose a mechanism; kinds of events besides draws
TABLE_BOUND = "largest column norms of integer matrices, exactly: strategies.json"
LINK_BOUND = "exactly, from bounds of links and of the norms of features: draws.json"
NEIGHBOURS = {
    "add/remove": "one has one unit more (add or remove); the number of rows is private",
    "replace": "one row of a table is replaced, with its links; the numbers of rows are private",
}


def cross_faults(folder: str | Path) -> list[str]:
    """Return contradictions between the files of a bundle; none if they agree."""
    names = ("draws", "strategies", "events", "ledger", "selftest", "checklist", "run-files", "versions")
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8")) for name in names}
    found = [*_ledger(files), *shapes.strategy_faults(files), *_selftest(files["selftest"])]
    found += [*_files(files), *_charge(files)]
    if tomllib is not None:
        job, domains = _inputs(Path(folder))
        found += [*_job(job, files), *_components(job, domains, files), *_checklist(job, domains, files)]
        factors = files["strategies"]["factors"]
        found += [fault for one in _of_kind(files, "table")
                  for fault in shapes.shape_faults(one, domains[one["domain"]], factors)]  # fmt: skip
    if "chain" not in files["ledger"]:
        return [*found, "ledger.json has no hash chain"]
    return [*found, *_chain(files["ledger"]["chain"], files, Path(folder))]


def _inputs(folder: Path) -> tuple[Fields, dict[str, Fields]]:
    """Return the job, and the domains by name of file."""
    job = tomllib.loads((folder / "job.toml").read_text("utf-8"))
    names = shapes.domain_files(job)
    return job, {name: tomllib.loads((folder / name).read_text("utf-8")) for name in names}


def _of_kind(files: Fields, kind: str) -> list[Fields]:
    return [one for one in components(files["draws"]) if one["kind"] == kind]


def own_entry(files: Fields) -> Fields:
    """Return the release's entry on the ledger."""
    return dict(next(row for row in files["ledger"]["releases"] if row["release"] == files["draws"]["release"]))


# ---- the job -------------------------------------------------------------------------------------------------------


def _job(job: Fields, files: Fields) -> Iterator[str]:
    """Yield differences of the requested budget, privacy unit and noise from the ledger's entry and the draws."""
    row, privacy = own_entry(files), job["privacy"]
    for name in ("epsilon", "delta"):
        if privacy.get(name) != row.get(name):
            yield f"job.toml and the ledger's entry have different values of {name}"
    yield from _budget(privacy, row["cost"], files["events"]["release"])
    protects = shapes.protection(job)
    if row.get("relation"):
        if any(row.get(name) != protects[name] for name in ("unit", "unit_table", "relation")):
            yield "job.toml and the ledger's entry have different privacy units"
        if int(row.get("bound") or 1) != int(protects["bound"]):
            yield "job.toml and the ledger's entry have different numbers of rows per unit"
    seeded = "seed" in job.get("engine", {})
    if {seeded, bool(row.get("public")), not files["events"]["private"]} != {seeded}:
        yield "job.toml, events.json and the ledger's entry disagree on whether the noise has a seed"
    pure, drawn = "epsilon" in privacy and "delta" not in privacy, components(files["draws"])
    if any((draw.get("laplace") is not None) != pure for one in drawn for draw in one["draws"]):
        yield "job.toml requests a different noise distribution than was drawn"


def _components(job: Fields, domains: Mapping[str, Fields], files: Fields) -> Iterator[str]:
    """Yield components that are not those of the job, have other public facts, or cost more than their share."""
    listed, known = components(files["draws"]), shapes.expected(job, domains, files)
    if [label(one) for one in listed] != [label(one) for one in known]:
        yield "job.toml and draws.json have different components"
        return
    for component, facts in zip(listed, known, strict=True):
        own = [name for name in facts if name not in shapes.OF_JOB]
        if wrong := next((name for name in own if component.get(name) != facts[name]), None):
            yield f"job.toml and draws.json have different values of {wrong} of {label(component)}"
        if component["kind"] == "link":
            yield from statistic_faults(component, facts)
        if files["versions"]["format"] == TABLES:  # other scripts compare the rest
            yield from _share_faults(component, facts["share"], job["privacy"], files)


def _share_faults(component: Fields, share: float, privacy: Fields, files: Fields) -> Iterator[str]:
    """Yield a fault if a component costs more than its share of the budget, or much less without selections."""
    events = cost_of(component, files)
    if privacy.get("delta") is None and privacy.get("epsilon") is not None:
        return  # a pure release has one component, whose cost is compared with the whole charge
    spent = sum((cost * count for (kind, cost), count in events.items() if kind == "gaussian"), Fraction(0))
    if spent > Fraction(share) * budget(privacy) * Fraction(1 + SHARES):
        yield f"{label(component)} costs more than its share of the budget in job.toml"
    charged = Fraction(own_entry(files)["cost"]["gaussian"]) * Fraction(share)
    if spent < SPENT * charged and not component["selections"] and not component.get("loop"):
        yield f"the draws of {label(component)} cost only {float(spent / charged):.3g} of its share"


def cost_of(component: Fields, files: Fields) -> Counter[tuple[str, Fraction]]:
    """Return the events of one component."""
    return check_draws({"components": [component]}, files["strategies"]["factors"])[0]


def budget(privacy: Fields) -> Fraction:
    """Return the squared μ that the job requests."""
    if privacy.get("epsilon") is not None:
        return Fraction(mu_of_epsilon(privacy["epsilon"], privacy["delta"])) ** 2
    return Fraction(2 * privacy["rho"] if privacy.get("rho") is not None else privacy["privacy_cost"])


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
    if share < SPENT and not any(one["selections"] for one in components(files["draws"])):
        yield f"the draws cost only {float(share):.3g} of the charge"


def _share(files: Fields) -> Fraction:
    """Return the cost of draws and selections as a share of the charge; 1 if their currencies differ."""
    cost, events = own_entry(files)["cost"], files["events"]["release"]["events"]
    kinds = {"gaussian": "gaussian", "laplace": "pure", "pure": "pure"}
    for kind in ("gaussian", "pure"):
        own = [one for one in events if kinds.get(one["kind"]) == kind]
        if Fraction(cost.get(kind) or 0) and len(own) == len([one for one in events if one["kind"] not in OTHER]):
            return sum((Fraction(one["cost"]) * int(one["count"]) for one in own), Fraction(0)) / Fraction(cost[kind])
    return Fraction(1)


def unverified(folder: str | Path) -> list[str]:
    """Return a sentence for each fact that these checks accept without verification."""
    files = {name: json.loads((Path(folder) / f"{name}.json").read_text("utf-8"))
             for name in ("draws", "strategies", "events", "ledger", "versions")}  # fmt: skip
    factors, found = files["strategies"]["factors"], []
    parts = [part for one in factors.values() for part in (one, *one.get("levels", ()))]
    if alone := sum("columns" in part for part in parts):
        found.append(f"the sensitivities of {alone} strategies, of which the bundle contains only column norms")
    links = _of_kind(files, "link")
    found += [text for link in links for text in _unverified_link(link)]
    if not files["ledger"]["chain"]["opened"]["facts"]:
        found.append("domains and plans: the ledger's entry of this release seals no hash of them")
    if tomllib is None:
        return [*found, "job, domain and checklist, which requires Python 3.11 or later"]
    _, domains = _inputs(Path(folder))
    grouped = sum(shapes.is_grouped(draw, factors, shapes.axes_of(domains[one["domain"]]))
                  for one in _of_kind(files, "table") for draw in one["draws"])  # fmt: skip
    if grouped:
        found.append(f"the cells of {grouped} draws of an adaptive mechanism, which are groups of the domain's cells")
    selected = any(one["selections"] for one in components(files["draws"]))
    if selected and (share := _share(files)) < Fraction(1, 2):
        found.append(f"the noise: the draws other than selections cost only {float(share):.3g} of the charge")
    return found


def _unverified_link(link: Fields) -> Iterator[str]:
    if link["draws"]:
        yield (f"the noise of {len(link['draws'])} draws of {label(link)}: its files contain values without records, so"
               " it is that of the job's budget")  # fmt: skip
    if link["precisions"]:
        yield f"the clipping bounds and precisions of the feature sums of {label(link)}, planned from released values"
    if link["loop"] and not link["selections"]:
        yield f"that {label(link)} has no rounds because a table has no rows"


# ---- the ledger ----------------------------------------------------------------------------------------------------


def _ledger(files: Fields) -> Iterator[str]:
    """Yield contradictions between the totals in ledger.json and its rows."""
    ledger = files["ledger"]
    rows, cap = ledger["releases"], ledger.get("cap")
    stated = [row for row in (*caps_in_force(ledger).values(), *rows) if row.get("relation")]
    tables = {row.get("unit_table") for row in rows if stated and row.get("unit") == stated[0].get("unit")}
    if len(tables) == 1 and not stated[0].get("unit_table"):
        stated[0] = {**stated[0], "unit_table": tables.pop()}
    if ledger.get("protects") != (protected(stated[0]) if stated else None):
        yield "ledger.json and its rows have different privacy units"
    pure = all(not Fraction(row["cost"].get(name) or 0) for row in rows for name in ("gaussian", "zcdp"))
    currency = (cap or {}).get("currency") or ("pure" if pure else "gdp")
    if not str(ledger["currency"]).startswith(f"{currency}:"):
        yield "ledger.json has its total in a different currency than its cap or its rows"
    if cap and cap["delta"] != ledger["spent"]["delta"]:
        yield "ledger.json has its total at a different delta than its cap"


def caps_in_force(ledger: Fields) -> dict[str, Fields]:
    """Return the caps in force by the period by which they renew; "" for the total."""
    caps = {"": ledger.get("cap")} | {one["period"]: one for one in ledger.get("period_caps", ())}
    return {by: caps[by] for by in ("", "month", "year") if caps.get(by)}


def protected(row: Fields) -> str:
    """Return the privacy unit of an entry in words."""
    name = row.get("unit") if row.get("unit_table") is None else f"{row['unit_table']}.{row['unit']}"
    name = f"{name} in one {row['span']}" if row.get("span") else name
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
    caps = [*ledger["former_caps"], *filter(None, [ledger.get("cap")]), *ledger.get("period_caps", ())]
    for kind, listed in {"caps": caps, "releases": ledger["releases"]}.items():
        shown = [link["shown"] for link in chain["links"] if link["entry"] == kind]
        shown = sorted(shown, key=lambda one: "period" in one)  # caps on the total, then those that renew
        if len(shown) != len(listed) or not all(map(_same, listed, shown)):
            yield f"ledger.json and its hash chain have different {kind}"
    opened = chain["opened"]
    own = [link for link in chain["links"] if link["shown"].get("release") == files["draws"]["release"]]
    if [link["facts"] for link in own if link["entry"] == "releases"] != [chained([opened["key"], opened["facts"]])]:
        yield "ledger.json and its hash chain have different hashes of the domain and the plan"
    plan = [f"{name}\0{one}\n" for name, one in sorted(files["run-files"].items()) if name.startswith("plan/")]
    here: Fields = {"plan": hashlib.sha256("".join(plan).encode()).hexdigest()}
    here |= {one.stem: hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.glob("domain.toml")}
    here["condition"] = shapes.agreed(_inputs(folder)[1].values()) if tomllib else None
    facts = {"condition": "", **opened["facts"]}
    wrong = (name for name, one in facts.items() if here.get(name, "") not in (one, None))
    yield from (f"the {name} differs from the one that was charged" for name in wrong)


def _same(row: Fields, shown: Fields) -> bool:
    """Return whether a row of ledger.json is the entry of a link; the row fills in fields that older entries omit."""
    for name, value in {**dict.fromkeys(("span", "period", "periods")), **shown}.items():
        filled = value is None and name in ("public", "currency")
        if not filled and row.get(name) != (json.loads(value) if value and name in ("cost", "periods") else value):
            return False
    return True


# ---- the rest ------------------------------------------------------------------------------------------------------


def _selftest(selftest: Fields) -> Iterator[str]:
    names = [one["name"] for one in selftest["checks"]]
    valid = all(isinstance(one["passed"], bool) for one in selftest["checks"])
    if not names or len(set(names)) < len(names) or not valid:
        yield "selftest.json has no checks, or a duplicate or invalid one"
    elif selftest["passed"] is not all(one["passed"] for one in selftest["checks"]):
        yield "selftest.json and its checks disagree on whether it passed"


def _files(files: Fields) -> Iterator[str]:
    """Yield a fault if the run lacks a file of a draw, or has a file of values that no draw refers to."""
    drawn = {f"{one['folder']}{'measurements/' if one['kind'] == 'table' else ''}{draw['file']}"
             for one in components(files["draws"]) for draw in one["draws"]}  # fmt: skip
    if lacking := drawn - set(files["run-files"]):
        yield f"run-files.json lacks {min(lacking)}, which draws.json refers to"
    values = {name for name in files["run-files"] if VALUES.search(name)}
    if unknown := values - drawn:
        yield f"run-files.json has {min(unknown)}, which belongs to no draw"


def _checklist(job: Fields, domains: Mapping[str, Fields], files: Fields) -> Iterator[str]:
    """Yield answers that contradict the other files; answers equal in every bundle are checked by their hash."""
    rows, expected = files["checklist"], {("", name): text for name, text in _answers(job, domains, files).items()}
    for component, facts in zip(components(files["draws"]), shapes.expected(job, domains, files), strict=False):
        if label(component) != label(facts):
            return  # different components are another fault
        answered = _component_answers(component, facts, job)
        expected |= {(label(component), name): text for name, text in answered.items()}
    answers = {(row.get("component", ""), row["question"]): row["answer"] for row in rows}
    for (own, question), pattern in expected.items():
        if not re.fullmatch(pattern, str(answers.get((own, question)))):
            yield f"checklist.json contradicts the other files on {question!r}{f' of {own}' if own else ''}"
            return
    derived = {question for _, question in expected}
    fixed = [{**row, "answer": None} if row["question"] in derived else row for row in rows if "component" not in row]
    hashes, parts = (CONSTANTS[TABLES], CONSTANTS[files["versions"]["format"]]), len(rows) - len(fixed)
    if chained(fixed) not in hashes or len(answers) != len(rows) or parts != sum(bool(own) for own, _ in expected):
        yield "checklist.json has answers that dpscale does not write"


def _answers(job: Fields, domains: Mapping[str, Fields], files: Fields) -> Mapping[str, str]:
    """Return patterns of the answers about the release that follow from the other files."""
    claim, whole, protects = files["events"]["release"], files["events"]["dataset"], shapes.protection(job)
    private, unit, span = files["events"]["private"], protects["unit"], own_entry(files).get("span")
    limits = [f"ε = {one['epsilon']:g} at δ = {one['delta']:g}{f' for each {by} of the data' if by else ''}"
              for by, one in caps_in_force(files["ledger"]).items()]  # fmt: skip
    column = unit if protects["unit_table"] is None else f"{protects['unit_table']}.{unit}"
    secrets = ("destroyed", "STILL THERE: the run was not ended")
    texts = {
        "Which tables are neighbours?": NEIGHBOURS[protects["relation"]] + shapes.agreed(domains.values()),
        "Is the release private?": "yes" if private else "NO: the noise follows from a seed that anybody can try",
        "Which definition?": "(ε, δ)-differential privacy" if claim["delta"] else "pure ε-differential privacy",
        "ε": "none" if claim["epsilon"] is None else f"{claim['epsilon']:.9g}",
        "δ": f"{claim['delta']:g}",
        "Whom does it protect?": "one row" if unit is None
        else f"all rows with one value of the column {column!r}{f' in one {span}' if span else ''}",
        "Where does the randomness come from?": "256 bits of the operating system" if private
        else "a seed in the job file: for tests only",
        "How many releases of this dataset?": str(len(files["ledger"]["releases"])),
        "What do they come to?": "unbounded" if whole["epsilon"] is None
        else f"ε = {whole['epsilon']:.9g} at δ = {whole['delta']:g}",
        "Is there a cap?": "; ".join(limits) or "none: the ledger records and refuses nothing",
    }  # fmt: skip
    texts = {question: re.escape(text) for question, text in (texts | shapes.period_answers(files["draws"])).items()}
    return texts | {"What became of the secret of the noise?": "|".join(map(re.escape, secrets))}


def _component_answers(component: Fields, facts: Fields, job: Fields) -> Mapping[str, str]:
    """Return patterns of the answers about a component."""
    pure = job["privacy"].get("epsilon") is not None and job["privacy"].get("delta") is None
    law = "discrete Laplace" if pure else "discrete Gaussian"
    count = sum(int(one["count"]) for one in component["selections"])
    choices = f"; {count} selections by the exponential mechanism, on whole scores" if count else ""
    noise = re.escape(f": {len(component['draws'])} measurements, {law} noise on whole numbers{choices}")
    if component["kind"] == "link":
        return {
            "How much may one unit contribute?": re.escape(f"neighbours differ in at most {component['moved']} links"),
            "Which one?": re.escape(str(facts["settings"]["mechanism"])) + noise,
            "How is sensitivity bounded?": re.escape(LINK_BOUND),
            "What follows the noise?": re.escape("sampled links: from released values alone"),
        }
    rows, steps = component["rows_per_unit"], int(component["steps"])
    bound = f"at most {rows} of its rows are counted" if facts["bounded"] else "one row"
    twice = f"; neighbours of the release are {steps} steps apart" if steps > 1 else ""
    mechanism = facts["settings"].get("mechanism") or "auto"
    name = mechanism if isinstance(mechanism, str) else mechanism["name"]
    return {
        "How much may one unit contribute?": re.escape(bound + twice),
        "Which one?": ("[a-z0-9+-]+" if name in UNNAMED else re.escape(name)) + "(/[0-9]+)?" + noise,
        "How is sensitivity bounded?": re.escape(TABLE_BOUND),
        "What follows the noise?": "[a-z-]+: from released values alone",
    }
