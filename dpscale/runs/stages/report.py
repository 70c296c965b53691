"""The report stage: collect the public results of a run and write report.html. It reads no record and no count."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tomli_w

from dpscale.answers import statistics, tables
from dpscale.answers.findings import Finding, MeanFinding, findings
from dpscale.answers.report import (
    Section,
    check_rendered,
    error_plot,
    pair,
    render_sections,
    share_plot,
    single,
    strategy_picture,
    trace_plot,
    weight_plot,
)
from dpscale.answers.report.charts import WIDTH_OF_95, csv_text, statistic
from dpscale.answers.report.page import frame, redacted
from dpscale.answers.report.results import has_numbers, hierarchy_results, number_results, total_results
from dpscale.answers.tables import LEVEL, Answered, title_of, titles_of, words_of
from dpscale.answers.unit_counts import unit_results
from dpscale.base.arrow import pa, pc, pq
from dpscale.base.errors import DpscaleError, PlanError
from dpscale.base.numerics import one_thread
from dpscale.engine.counting import counting_cost
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.ledger.request import SENSIBLE
from dpscale.plans.measurement_plan import budget_shares
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import GAUSSIAN, Cost, float_above
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.runs.answers import (
    AnswerColumns,
    answer_texts,
    have_intervals,
    read_index,
    read_trace,
    relative_errors,
    selected_rows,
    statements_of,
)
from dpscale.runs.estimates import counted_words, estimates_of, model_folder
from dpscale.runs.run import Run
from dpscale.runs.searches import summarize_searches
from dpscale.runs.table import TablePart
from dpscale.storage.files import read_text, write_whole

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

Value = TypeVar("Value")
SQL, R = ("'", {"'": "''"}), ('"', {'"': '\\"', "\\": "\\\\"})
# requested tables; charts of single attributes; pictures of strategies; cells of a picture, and half of its rows
ASKED, SINGLES, STRATEGIES, MOST_SIDE = 6, 4, 4, 64
LISTED = 60  # queries that are listed by predicates
NUMBERS = 6  # figures of sums and means


def headline_tables(answered: Answered, found: Sequence[Finding | MeanFinding]) -> dict[str, Any]:
    """Return the estimated total, pictures of the tables that the job asks first and of those of the findings, and CSV.

    Tables of one attribute that are implied by larger ones fill up the first group to SINGLES of them. A finding states
    a conclusion about a table; one with a group is about the dependence of two attributes. `download` is the number of
    the table's text in `texts`.
    """
    shown = tables.requested(answered, ASKED)
    missing = SINGLES - sum(len(table.names) == 1 for table in shown)
    seen = {table.names for table in shown}
    if missing > 0:
        implied = [table for table in tables.singles(answered, ASKED + SINGLES) if table.names not in seen]
        shown += implied[:missing]

    dependent = []  # pairs of attributes that a finding calls dependent
    for finding in found:
        if isinstance(finding, Finding) and finding.group and finding.names not in seen:
            dependent.append(finding.names)
    pairs = [*tables.shown_tables(answered, dependent)]

    domain, drawn, texts = answered.estimates.workload.domain, list[dict[str, Any]](), list[str]()
    for number, table in enumerate([*shown, *pairs]):
        titles, words = titles_of(domain, table.names), tuple(words_of(domain[name]) for name in table.names)
        if len(table.names) == 1:
            picture = single(titles, words, table.values, table.half, domain[table.names[0]])
        else:
            picture = pair(titles, words, table.values, table.half)
        drawn.append(picture | {"download": number})
        texts.append(csv_text(table.names, table.labels, table.values, table.half))
    return {"total": _total(answered), "asked": drawn[: len(shown)], "pairs": drawn[len(shown) :], "texts": texts}


def _total(answered: Answered) -> dict[str, Any] | None:
    """Return the number of records as a row of a table; None if the workload does not determine it."""
    try:
        estimate, low, high = np.array(statistics.total(answered, tables.LEVEL))[:, None]
    except PlanError:
        return None
    errors = (high - estimate) / WIDTH_OF_95  # standard errors, from the half width of an interval
    return dict(statistic("", [""], estimate, low, high, errors, "records", 0)["rows"][0])


def overall_errors(families: list[dict[str, Any]], index: pa.Table) -> dict[str, Any] | None:
    """Return the typical error of counts and the share of counts that are smaller than their error (`beyond`).

    The typical error is the median over the sets in `index`. None if counts have no known error.

    Parameters
    ----------
    families : list of dict
        For each family of the workload: whether its queries are counts, their number and `typical` error, and the
        share `beyond` of those below their error, None if unknown.
    index : pyarrow.Table
        One row for each answered set, with its family and `rms_error`.
    """
    lines = [line for line in families if line["counts"] and line["typical"] is not None]
    if not lines:
        return None
    of_counts = pc.is_in(index["family"], pa.array([line["family"] for line in lines]))
    errors = index.filter(of_counts)["rms_error"].to_numpy()
    typical = float(np.median(errors[np.nan_to_num(errors) > 0]))

    known = [line for line in lines if line["beyond"] is not None]
    if not known:
        return {"typical": typical, "beyond": None}
    queries_below = sum(line["beyond"] * line["queries"] for line in known)
    return {"typical": typical, "beyond": queries_below / sum(line["queries"] for line in known)}


def remaining(run: Run) -> dict[str, Any]:
    """Return the budget that remains under the dataset's cap; None values if the ledger is not readable here.

    `capless` states that neither the dataset nor its periods have a cap.
    """
    ledger, none = str(run.job.privacy.ledger), {"remaining": None, "capless": False}
    if not Path(ledger).is_file():
        return none
    with suppress(DpscaleError, OSError), Ledger.open(ledger, create=False) as opened:
        summary = next(iter(opened.summary(run.manifest["privacy"]["dataset"])["datasets"].values()))
        if summary["remaining"] is None:
            return {"remaining": None, "capless": not (summary["cap"] or summary.get("period_caps"))}
        cap, left = summary["cap"], summary["remaining_epsilon"]
        left = left if left >= SENSIBLE * cap["epsilon"] else 0.0  # a rounding error
        return {"remaining": {"epsilon": left, "delta": cap["delta"]}, "capless": False}
    return none


def strategies(plan: Plan) -> list[dict[str, Any]]:
    """Return pictures of the strategies (matrices that map cells to measured values) of a plan, one for each kind.

    There are at most STRATEGIES pictures. A strategy with more than MOST_SIDE cells or twice as many rows is left out,
    because its entries could not be seen.
    """
    pictures = list[dict[str, Any]]()
    for index, _ in plan.blocks.kinds:  # `index` is the first block of a kind
        names = plan.blocks[index].attributes
        if names and plan.domain.cells(names) <= MOST_SIDE and len(pictures) < STRATEGIES:
            matrix = plan.strategy(names)
            if len(matrix) <= 2 * MOST_SIDE:
                pictures.append({"names": names, "rows": len(matrix), "cells": matrix.shape[1],
                                 "picture": strategy_picture(matrix)})  # fmt: skip
    return pictures


def snippets(run: TablePart, index: pa.Table) -> list[tuple[str, str]]:
    """Return pairs of a language and its code that reads the answers of the first set with an answer file.

    The languages are Python, DuckDB and R; without answer files only Python, which reads the total.
    """
    rows = index.filter(index["file"].is_valid()).slice(0, 1).to_pylist()
    if not rows:
        return [("Python", 'import dpscale as dp\n\nrelease = dp.Release.open("RUN_DIRECTORY")\nrelease.total()')]
    row = rows[0]
    part, names = run.workload.parts[row["part"]], row["attributes"]
    folder = f"answers/{AnswerColumns(run.domain, part, len(names)).folder}/*.parquet"
    # the files of a family have a column for each attribute's name
    where = " AND ".join(f"attribute_{i} = {_quoted(name, SQL)}" for i, name in enumerate(names, 1)) or "true"
    in_r = " & ".join(f"attribute_{i} == {_quoted(name, R)}" for i, name in enumerate(names, 1)) or "TRUE"
    python = (f'import dpscale as dp\n\nrelease = dp.Release.open("RUN_DIRECTORY")\n'
              f'release.table({list(names)}, family="{part.name}")\nrelease.total()')  # fmt: skip
    return [("Python", python), ("DuckDB", f"SELECT * FROM '{folder}'\nWHERE {where};"),
            ("R", f'library(arrow)\nlibrary(dplyr)\nopen_dataset("{folder.rsplit("/", 1)[0]}") |>\n'
                  f'  filter({in_r}) |>\n  collect()')]  # fmt: skip


def _quoted(name: str, language: tuple[str, Mapping[str, str]]) -> str:
    """Quote a name as a string literal of a language."""
    mark, escaped = language
    return mark + "".join(escaped.get(letter, letter) for letter in name) + mark


def job_text(job: Job) -> str:
    """Return the job file without paths and addresses."""
    return tomli_w.dumps(redacted(job.to_dict()))


MOST_CELLS = 40  # bars of a search in the report
MOST_LISTED, MOST_TEXTS = 500, 3000  # sets of the index, and their queries that can be downloaded


TABLE = (
    Section("summary", "Summary", listed=False),
    Section("selects", "Answers to SQL"),
    Section("numbers", "Sums and means"),
    Section("says", "Key results"),
    Section("hierarchies", "Hierarchies"),
    Section("units", "Distinct units"),
    Section("listed", "Listed queries"),
    Section("found", "Discovered cells"),
    Section("cost", "How it was protected"),
    Section("limits", "Limits of the protection"),
    Section("rows", "Synthetic rows"),
    Section("sets", "All tables"),
    Section("sure", "Accuracy"),
    Section("rounds", "Selections by round", folded=True),
    Section("plan", "Measurement plan", folded=True),
    Section("read", "Read the answers", folded=True),
    Section("job", "Job", folded=True),
    Section("made", "Provenance", listed=False, folded=True),
    Section("archive", "Downloads", listed=False),
)
SECTIONS: dict[str, Section] = {section.name: section for section in TABLE}  # one line per section


def perform(run: TablePart, engine: Engine) -> None:
    """Write report.html, then raise ReportError if a section failed."""
    with one_thread():
        page, failed = render_sections(_frame(run), SECTIONS.values(), values(run, engine.workers), run=run)
        write_whole(run.path / "report.html", page.encode())
    check_rendered(failed, run.path)


def _frame(run: TablePart) -> dict[str, Any]:
    """Return the values of the page outside its sections."""
    return frame(run.manifest, run.run.job.about)


def values(run: TablePart, workers: int = 1) -> dict[str, Callable[[], Any]]:
    """Return the values that sections use, each as a function that computes it when a section is rendered.

    Values that several sections need are cached functions as well: `told` are the findings, `left` the remaining
    budget, and `sure` the lines of errors by family and number of attributes.
    """
    measurement_plan, job, named = run.measurement_plan, run.job, run.job.reconstruction
    fixed = measurement_plan.evidence_plan
    trace, index = (
        cache(lambda: read_trace(run.path / "trace.parquet")),
        cache(lambda: read_index(run.path / "answers")),
    )
    # answers of the release, from which most sections are computed
    estimated = cache(lambda: Answered(estimates_of(run), str(run.manifest["release"]), frozenset(statements_of(run))))
    told, left = cache(lambda: findings(estimated())), cache(lambda: remaining(run.run))
    results = cache(lambda: headline_tables(estimated(), told()))
    listing = cache(lambda: listed_sets(run, index(), len(results()["texts"])))
    counts = {part.name for part in run.workload.parts if not has_numbers(part)}
    sure = cache(lambda: [line | {"counts": line["family"] in counts}
                          for line in relative_errors(run.path / "answers", index())])  # fmt: skip
    facts = _frame(run) | {
        "unit": job.data.unit_column or "row",
        "job": job,
        "domain": run.domain,
        "measurement_plan": measurement_plan,
        "refuses": [axis.name for axis in run.domain.axes if "reject" in (axis.outside, axis.nulls, axis.foreign)],
    }
    return {name: partial(_same, value) for name, value in facts.items()} | {
        "total": lambda: results()["total"],
        "asked": lambda: results()["asked"],
        "pairs": lambda: results()["pairs"],
        "remaining": lambda: left()["remaining"],
        "capless": lambda: left()["capless"],
        "selects": lambda: selected_rows(run, LISTED),
        "selects_have_intervals": lambda: have_intervals(run),
        "listed": lambda: tables.listed_counts(estimated(), LISTED),
        "found": lambda: _found(run),
        "units": lambda: _units(run),
        "numbers": lambda: number_results(estimated(), NUMBERS),
        "hierarchies": lambda: _hierarchies(run, estimated, index()),
        "sure": sure,
        "errors": lambda: overall_errors(sure(), index()),
        "has_errors": lambda: any(line["typical"] is not None for line in sure()),
        "findings": lambda: [finding.sentence(run.domain) for finding in told()],
        "workload": lambda: _words(sure()),
        "strategies": lambda: [] if fixed is None else strategies(fixed),
        "snippets": lambda: snippets(run, index()),
        "job_text": lambda: job_text(run.run.job),
        "cards": lambda: measurement_plan.forecast(run.planning_problem.budget).cards,
        "notes": lambda: measurement_plan.forecast(run.planning_problem.budget).notes,
        "explains": lambda: named.explain(job.estimating),
        "extrapolated": lambda: _extrapolated(index()),
        "disagreement": lambda: named.disagreement(measurement_plan, job.estimating, model_folder(run)),
        "saving": lambda: counting_cost(run.domain, measurement_plan.counted_sets, job.engine.bytes, workers).saving,
        "measurements": lambda: sum(len(decision.requests) for decision in run.measurements.decisions()),
        "epsilon": lambda: _epsilon(run, run.spent),
        "totals": lambda: total_results(estimated().estimates),
        "additive": lambda: float_above(run.spent.delta),
        "period": lambda: run.spent.period,
        "rows": lambda: listing()["rows"],
        "archive": lambda: packed([*results()["texts"], *listing()["texts"]]),
        "index": lambda: len(index()),
        "risk": lambda: run.attack_risk,
        "counted": lambda: counted_words(run),
        "error_plot": lambda: error_plot({name: errors for name, errors in _errors(index()).items() if name in counts}),
        "share_plot": lambda: share_plot(budget_shares(measurement_plan)),
        "weight_plot": lambda: "" if fixed is None else weight_plot(fixed.accuracy.profiles),
        "drawn": lambda: _drawn(run),
        "trace": lambda: _by_round(trace()),
        "trace_plot": lambda: trace_plot(trace()),
    }


def _hierarchies(run: TablePart, estimated: Callable[[], Answered], index: pa.Table) -> list[dict[str, Any]]:
    """Return the figures of hierarchies; sets of sums and means are not counts of nodes."""
    if not run.domain.hierarchies:
        return []
    rows = index.select(["attributes", "queries", "rms_error"]).to_pylist()
    counts = [row for row in rows if run.domain.number_names.isdisjoint(row["attributes"])]
    return hierarchy_results(estimated(), counts)


def _found(run: TablePart) -> list[dict[str, Any]]:
    """Return title, facts and bars of every search for cells that are not public.

    The bars are a chart of the noisy counts of the found cells with intervals, of the largest MOST_CELLS if there are
    more.
    """
    width, sections = half_width(LEVEL, GAUSSIAN), list[dict[str, Any]]()
    for name, summary in summarize_searches(run.declared, run.domain, run.searched).items():
        largest = summary.cells
        if len(largest) > MOST_CELLS:
            largest = tuple(sorted(largest, key=lambda cell: -cell[1])[:MOST_CELLS])  # by count
        labels, counts, errors = zip(*largest, strict=True) if largest else ((), (), ())
        values, half_widths = np.array(counts, float), width * np.array(errors, float)

        # the attribute's words, if all its cells are shown
        attribute = run.domain[name] if name in run.domain.names and len(largest) == len(summary.cells) else None
        words = words_of(attribute) if attribute is not None and attribute.size == len(labels) else labels
        bars = single((name,), (words,), values, half_widths, attribute) if largest else None
        sections.append({"name": name, "title": summary.title, "facts": summary.facts, "cells": len(summary.cells),
                         "shown": len(largest), "bars": bars})  # fmt: skip
    return sections


def _units(run: TablePart) -> list[dict[str, Any]]:
    """Return the figures of the numbers of distinct units."""
    tables = ((names, pq.read_table(file)) for names, file in run.unit_files.items())
    return unit_results(run.domain, tables, MOST_CELLS)


def _same(value: Value) -> Value:
    return value


def _extrapolated(index: pa.Table) -> int | None:
    """Return the number of sets that a model answers beyond the row space; None for least squares."""
    named = "extrapolated" in index.column_names
    return int(index["extrapolated"].to_numpy(zero_copy_only=False).sum()) if named else None


def _drawn(run: TablePart) -> dict[str, Any] | None:
    """Return the description of the synthetic rows and their distance from the estimates; None without rows."""
    return dict(json.loads(read_text(run.path / "synthetic" / "_rows.json"))) if run.done("synthesize") else None


def _by_round(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per round: its selections, their cost, the change of the estimates and the expected noise.

    A row of the trace is one selected set: `moved` is the change of the estimates, `expected_noise` the noise that its
    measurement is expected to have.
    """
    lines: dict[int, dict[str, Any]] = {}
    for row in trace:
        line = lines.setdefault(
            row["round"], {"round": row["round"], "cost": 0.0, "chosen": [], "moved": 0.0, "noise": 0.0}
        )
        line["cost"] += row["privacy_cost"]
        line["chosen"].append(", ".join(row["attributes"]))
        line["moved"] += row["moved"]
        line["noise"] += row["expected_noise"]
    return [lines[number] | {"sets": _named(lines[number]["chosen"])} for number in sorted(lines)]


def _named(chosen: list[str], most: int = 4) -> str:
    """Return the first `most` sets that a round selected, and how often it selected nothing ("")."""
    sets = [names for names in chosen if names]
    first = [*sets[:most], *["…"] * (len(sets) > most)]
    nothing = len(chosen) - len(sets)
    return "; ".join([*first, *([f"nothing, {nothing} times"] if nothing else [])])


def listed_sets(run: TablePart, index: pa.Table, first: int) -> dict[str, Any]:
    """Return the first sets of the index of answers, in the order of the workload, and their answers as CSV.

    Parameters
    ----------
    run : TablePart
    index : pyarrow.Table
    first : int
        Number of texts before these in the archive of the page.

    Returns
    -------
    dict
        `rows`: attributes, family, queries, rms_error, file, and `download`, the number of the text, or None; `texts`.
    """
    rows = index.slice(0, MOST_LISTED).to_pylist()
    texts = answer_texts(run.path / "answers", rows, MOST_TEXTS)
    numbers = {place: first + number for number, place in enumerate(texts)}
    titles = [[title_of(run.domain, name) for name in row["attributes"]] for row in rows]
    shown = [row | {"download": numbers.get(place), "titles": titles[place]} for place, row in enumerate(rows)]
    return {"rows": shown, "texts": texts.values()}


def packed(texts: Sequence[str]) -> str:
    """Return texts, separated by form feeds, as compressed base64 for the script of the page."""
    joined = "\f".join(text.replace("\f", " ") for text in texts)
    return base64.b64encode(gzip.compress(joined.encode(), mtime=0)).decode()


def _errors(index: pa.Table) -> dict[str, tuple[Any, Any]]:
    """Return queries and root mean square standard errors of the answered sets of each family."""
    family, queries, errors = (index[name].to_numpy() for name in ("family", "queries", "rms_error"))
    by_family = {}
    for name in dict.fromkeys(family.tolist()):
        answered = (family == name) & (errors > 0)
        if answered.any():
            by_family[str(name)] = queries[answered], errors[answered]
    return by_family


def _epsilon(run: TablePart, cost: Cost) -> list[tuple[float, float]]:
    """Return (ε, δ) pairs of a cost, at the job's δ first, then at common ones; δ above the additive one only.

    A pure cost is stated at its additive δ first. At a δ below the additive one ε is infinite.
    """
    of_job = [run.job.privacy.delta] if run.job.privacy.delta else []
    deltas = [float_above(cost.delta)] if cost.pure else of_job
    figures = [(cost.epsilon_or_inf(delta), delta) for delta in dict.fromkeys([*deltas, 1e-6, 1e-9])]
    return [(epsilon, delta) for epsilon, delta in figures if not cost.delta or np.isfinite(epsilon)] or figures[:1]


def _words(sure: list[dict[str, Any]]) -> list[str]:
    """Return a description of each family of the workload: queries, sets, attributes.

    `sure` has a line for each family and number of attributes (`degree`).
    """
    descriptions = []
    for family in dict.fromkeys(line["family"] for line in sure):
        lines = [line for line in sure if line["family"] == family]
        queries, sets = (sum(line[key] for line in lines) for key in ("queries", "sets"))
        degrees = sorted({line["degree"] for line in lines})
        span = f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
        descriptions.append(
            f"{queries:,} of family {family} ({sets:,} {'set' if sets == 1 else 'sets'} of {span} attributes)"
        )
    return descriptions
