"""Questions of an evaluation of differential privacy (after NIST SP 800-226), answered from a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpscale.audit.evidence.growing import measured_tables, secret_state
from dpscale.domain.public_totals import condition_of
from dpscale.privacy.accounting import LAPLACE
from dpscale.privacy.protection import REPLACE
from dpscale.runs.run import Run

Item = dict[str, str]
YES = "as it was installed; `selftest.json` has the audit of that installation"
NEIGHBOURS = "one has one unit more (add or remove); the number of rows is private"
REPLACED = "one row of a table is replaced, with its links; the numbers of rows are private"


def checklist(run: Run, events: Mapping[str, Any], ledger: Mapping[str, Any], drawn: Mapping[str, Any]) -> list[Item]:
    """Return one row per question: topic, question, answer; and the component, if the answers of components differ."""
    rows = [*_guarantee(run, events), *_mechanism(run), *_composition(events, ledger), *_hazards(run), *_time(drawn)]
    found = [{"topic": topic, "question": question, "answer": answer} for topic, question, answer in rows]
    tables = measured_tables(run)
    for one in drawn["components"]:
        own = _of_table(tables[one["name"]], one) if one["kind"] == "table" else _of_link(run, one)
        for topic, question, answer in own:
            found.append({"component": f"{one['kind']} {one['name']}", "topic": topic, "question": question,
                          "answer": answer})  # fmt: skip
    return found


def _guarantee(run: Run, events: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    protects, claim = run.protects, events["release"]
    private = "yes" if events["private"] else "NO: the noise follows from a seed that anybody can try"
    column = protects.unit if protects.table is None else f"{protects.table}.{protects.unit}"
    totals = [one for table in run.tables.values() for one in table.domain.public_totals]
    relation = REPLACED if protects.relation == REPLACE else NEIGHBOURS
    return [
        ("guarantee", "Is the release private?", private),
        ("guarantee", "Which definition?", _definition(claim)),
        ("guarantee", "ε", "none" if claim["epsilon"] is None else f"{claim['epsilon']:.9g}"),
        ("guarantee", "δ", f"{claim['delta']:g}"),
        ("unit", "Whom does it protect?", _unit(column, protects.span)),
        ("unit", "Which tables are neighbours?", relation + condition_of(totals)),
    ]


def _unit(column: str | None, span: str | None) -> str:
    within = f" in one {span}" if span else ""
    return "one row" if column is None else f"all rows with one value of the column {column!r}{within}"


def _definition(claim: Mapping[str, Any]) -> str:
    return "(ε, δ)-differential privacy" if claim["delta"] else "pure ε-differential privacy"


def _mechanism(run: Run) -> list[tuple[str, str, str]]:
    limits = (
        "every attribute has declared cells; a value outside is refused, clipped, dropped or a category, row by row"
    )
    return [
        ("mechanism", "How are values bounded?", f"{limits} (domain.toml, or domain.TABLE.toml)"),
        ("mechanism", "Is the domain public?", _domain(run)),
        ("sampling", "How is noise drawn?", f"exactly, from ChaCha20 keyed by HMAC-SHA256; {YES}"),
        ("sampling", "Where does the randomness come from?", _source(run)),
        ("sampling", "Can a failure draw twice?", "no: a draw is a function of the secret and of what is measured"),
        ("floating point", "Does it touch the noise?", "no: integers until the noise is in, floats after it"),
    ]


def _domain(run: Run) -> str:
    if any(table.discovery for table in measured_tables(run).values()):
        return "it is declared in a file, but for cells that were found by measurements: searches.json"
    return "it is declared in a file and never read off the records"


def _of_table(table: Any, component: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    bound = f"at most {rows} of its rows are counted" if (rows := table.job.data.max_rows_per_unit) else "one row"
    steps = component["steps"]
    bound += f"; neighbours of the release are {steps} steps apart" if steps > 1 else ""
    law = "discrete Laplace" if table.job.privacy.noise == LAPLACE else "discrete Gaussian"
    return [
        ("unit", "How much may one unit contribute?", bound),
        ("mechanism", "Which one?", f"{table.measurement_plan.mechanism}: {_noise(component, law)}"),
        ("mechanism", "How is sensitivity bounded?",
         "largest column norms of integer matrices, exactly: strategies.json"),
        ("post-processing", "What follows the noise?", f"{table.job.reconstruction.name}: from released values alone"),
    ]  # fmt: skip


def _of_link(run: Run, component: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    link = next(one.link for one in run.links if one.link.called == component["name"])
    return [
        ("unit", "How much may one unit contribute?", f"neighbours differ in at most {component['moved']} links"),
        ("mechanism", "Which one?", f"{link.mechanism}: {_noise(component, 'discrete Gaussian')}"),
        ("mechanism", "How is sensitivity bounded?",
         "exactly, from bounds of links and of the norms of features: draws.json"),
        ("post-processing", "What follows the noise?", "sampled links: from released values alone"),
    ]  # fmt: skip


def _noise(component: Mapping[str, Any], law: str) -> str:
    chosen = sum(int(one["count"]) for one in component["selections"])
    choices = f"; {chosen} selections by the exponential mechanism, on whole scores" if chosen else ""
    return f"{len(component['draws'])} measurements, {law} noise on whole numbers{choices}"


def _source(run: Run) -> str:
    return "256 bits of the operating system" if run.manifest["private"] else "a seed in the job file: for tests only"


def _composition(events: Mapping[str, Any], ledger: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    whole, cap = events["dataset"], ledger.get("cap")
    total = "unbounded" if whole["epsilon"] is None else f"ε = {whole['epsilon']:.9g} at δ = {whole['delta']:g}"
    caps = {"": cap} | {one["period"]: one for one in ledger.get("period_caps", ())}
    limits = [f"ε = {one['epsilon']:g} at δ = {one['delta']:g}{f' for each {by} of the data' if by else ''}"
              for by in ("", "month", "year") if (one := caps.get(by))]  # fmt: skip
    return [
        ("accounting", "What was charged, and when?", "the whole cost, before the first draw; there is no refund"),
        ("accounting", "How many releases of this dataset?", str(len(ledger["releases"]))),
        ("accounting", "What do they come to?", total),
        ("accounting", "Is there a cap?", "; ".join(limits) or "none: the ledger records and refuses nothing"),
        ("accounting", "Who checks?", "recompute.py, from integers; with dp-accounting where it is installed"),
    ]


def _time(drawn: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows on the periods of a growing table; none of other runs."""
    if (time := drawn.get("time")) is None:
        return []
    cost = f"{time['factor']} times one period, to a unit in at most {time['periods_per_unit']}"
    return [
        ("accounting", "What does the horizon cost?", f"{cost} of {len(time['periods'])} periods: time.json"),
        ("public", "What is taken as public about periods?", "that their records have arrived; which are released"),
    ]


def _hazards(run: Run) -> list[tuple[str, str, str]]:
    secret = secret_state(run) or "STILL THERE: the run was not ended"
    unit_rows = "a refused value tells one bit before the charge; clip, drop or category tell none"
    return [
        ("secrets", "What became of the secret of the noise?", secret),
        ("secrets", "Is it in logs, tasks or manifests?", "no: a file of its owner alone, while noise is drawn"),
        ("side channels", "Timing, memory, progress", "NOT protected: they depend on the data"),
        ("side channels", "Refusals", unit_rows),
        ("public", "What is taken as public?", "job, domain; number, size, names and times of change of data files"),
        (
            "data",
            "Who sees records?",
            "the curator's machines while they count; records leave them in no message or file",
        ),
        ("data", "How were the data collected and kept?", "outside this package: for the curator to say"),
        ("trust", "Who is trusted?", "the curator (central model), machines, ledger; readers of the release are not"),
        ("trust", "Against whom is the ledger no guard?", "its owner: another ledger or name starts a new account"),
        ("utility", "Are errors told?", "the answers have standard errors where they follow from the noise"),
    ]
