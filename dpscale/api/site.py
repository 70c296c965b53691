"""Reading of finished releases and their ledger for a static site. It reads no data and draws nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpscale.answers.findings import MOST_FINDINGS, findings
from dpscale.answers.publish import DESCRIPTION, chosen, publication_notes, publish
from dpscale.answers.published_values import StatementRows, flag_rows
from dpscale.answers.report.page import public_name
from dpscale.answers.site.pages import AttributePage, Edition, Site, attribute_pages, check_place, publications
from dpscale.answers.site.sheets import MOST_SHOWN, Sheet, SheetGroup, address_of_name, sheets, statement_sheet
from dpscale.answers.tables import Answered
from dpscale.answers.unit_counts import CUT_JOIN
from dpscale.api.release import Release
from dpscale.base.display import figure, power
from dpscale.base.errors import DpscaleError, JobError
from dpscale.ledger import Ledger
from dpscale.plans.time_plan import CUMULATIVE, PERIOD, WINDOW
from dpscale.privacy.accounting import STATED_DELTA, float_above
from dpscale.runs.answers import published_statements, selected_rows
from dpscale.runs.estimates import counted_words
from dpscale.runs.manifest import check_outputs
from dpscale.runs.opening import open_run
from dpscale.runs.run import Run

KINDS = {PERIOD: "each period", CUMULATIVE: "all periods so far", WINDOW: "the last {window} periods"}
SUBSET = "the releases on this site"


def read_site(
    run_dirs: Sequence[str], folder: Path, title: str, ledger: str | None, limit: float, minimum: int
) -> Site:
    """Return the site of some run directories, ready to be written.

    Parameters
    ----------
    run_dirs : sequence of str
        Finished releases; those with the same title are editions of one publication.
    folder : Path
        A new or empty folder, or an older site.
    title : str
        Title of the site.
    ledger : str, optional
        Ledger of all releases. Default: that of each job, if it can be read.
    limit, minimum
        As of `dpscale publish`.

    Returns
    -------
    Site

    Raises
    ------
    JobError
        If a run is not finished, or the folder has other files.
    BudgetError
        If the given ledger does not have the dataset of a release.
    """
    check_place(folder)
    runs = {}
    for path in run_dirs:
        release = Release.open(path)
        for own in release.tables.values():
            check_outputs(own.path, own.manifest["stages"])
        run = open_run(path)
        runs[run.manifest["release"]] = run, read_edition(release, run, limit, minimum)
    _check_titles([*runs.values()])
    return Site(
        title=title,
        publications=publications(one for _, one in runs.values()),
        accounts=[*accounts(runs.values(), ledger)],
        folder=folder,
    )


def _check_titles(runs: Sequence[tuple[Run, Edition]]) -> None:
    """Raise JobError for datasets that would be one subject because their names are paths, which are not shown.

    A pair is (run, edition); an edition is a release as a page shows it. Releases with the same ledger and dataset are
    one subject, which is named by its title, or by the dataset if that is no path.
    """
    named = {(run.manifest.get("ledger"), run.manifest["privacy"]["dataset"]) for run, one in runs
             if not one.words["title"]}  # fmt: skip
    unnamed = [dataset for _, dataset in named if public_name(dataset) != dataset]
    if len(unnamed) > 1:
        raise JobError("about.title", f"missing in releases of {len(unnamed)} datasets whose names are paths",
                       "a title for each", "add it to [about] in their job files, also in DIR/job.toml")  # fmt: skip


def read_edition(release: Release, run: Run, limit: float, minimum: int) -> Edition:
    """Return a release with its published tables, attributes, findings and promise.

    `limit` is the ratio of standard error to count above which a figure is unreliable, and counts below `minimum` are
    hidden. The findings and omitted sets are those of the last period.

    `told` are the sentences of the findings and `left_out` the sets without a published table, with the reason. With a
    minimum the site has no tables of statements.
    """
    about, told, left_out = run.job.about.model_dump(exclude_none=True), list[str](), list[tuple[str, str]]()
    pages, attributes = dict[str, Sheet](), dict[str, AttributePage]()
    for group, table, answered in _groups(release, run, limit, minimum, about):
        rows = [] if group.period else published_statements(table)
        published = {period: publish(one, chosen(one, [], None, bool(rows)), minimum, rows)
                     for period, one in answered.items()}  # fmt: skip
        own = [*sheets(group, published, limit, minimum), *([] if minimum else _selects(group, table, rows, limit))]
        pages |= {one.address: one for one in own}
        attributes |= attribute_pages(group, own)
        period = list(answered)[-1]
        where = ", ".join(filter(None, (group.title, period)))
        told += [f"{where}: {text}" if where else text
                 for text in (one.sentence(group.domain) for one in findings(answered[period]))]  # fmt: skip
        left_out += [(", ".join(names), why) for names, why in published[period].left_out.items()]

    private, privacy, cost = run.manifest["private"], run.manifest["privacy"], run.spent
    # a pure cost has the δ of its additive events alone; without a δ the site states one
    delta = float_above(cost.delta) if cost.is_pure else privacy["delta"] or STATED_DELTA
    epsilon = cost.epsilon_or_inf(delta) if private else math.inf
    return Edition(
        release=run.manifest["release"],
        moment=run.manifest["stages"]["measure"]["end"],
        dataset=public_name(privacy["dataset"]),
        about=about,
        private=private,
        promise=_promise(run, epsilon, delta),
        epsilon=epsilon,
        delta=delta,
        findings=told[:MOST_FINDINGS],
        left_out=left_out,
        sheets=pages,
        attributes=attributes,
    )


def _groups(
    release: Release, run: Run, limit: float, minimum: int, about: Mapping[str, str]
) -> Iterator[tuple[SheetGroup, Any, dict[str, Answered]]]:
    """Yield the tables and joins of a release, or its kinds of answers by period, with their answers.

    A group has a folder and a title of its own if there are several tables, joins or kinds of answers. A triple is
    (group of pages, table or join, answers). Answers are by the label of a period, or by "" without periods. `source`
    names the table that a group describes, and is empty for others. CUT_JOIN only measures how many rows the bounds
    cut, so it has no pages.
    """

    def group(
        folder: str, title: str, table: Any, answered: Answered, source: str = "", period: Any = None
    ) -> SheetGroup:
        """Return the description of a group of sheets with its notes; `table` states how many records are counted."""
        counted = counted_words(table)
        notes = publication_notes(f"{DESCRIPTION} Of the records, {counted}." if counted else DESCRIPTION, limit,
                                  minimum, about)  # fmt: skip
        return SheetGroup(
            folder=folder,
            title=title,
            domain=answered.estimates.workload.domain,
            source=source,
            counted=counted,
            notes=notes,
            period=period,
        )

    # a growing release: a group for each kind of answers, with all its periods
    if release.horizon:
        growing = run.tables["data"]
        for kind in growing.kinds:
            answered = {period: release.at(period, kind).answered for period in release.periods}
            part = growing.answers_at(release.periods[-1], kind)
            folder, source = ("", "data") if kind == PERIOD else (address_of_name(kind), "")
            title = "" if len(growing.kinds) == 1 else KINDS[kind].format(window=growing.job.periods.window)
            yield group(folder, title, part, answered[release.periods[-1]], source, growing.period), part, answered
        return
    for name, own in release.tables.items():
        folder, title = ("", "") if own is release else (f"table-{address_of_name(name)}", name)
        yield group(folder, title, run.tables[name], own.answered, name), run.tables[name], {"": own.answered}
    for name, own in release.joins.items():
        if name != CUT_JOIN:
            part = run.joins[name]
            yield group(f"join-{address_of_name(name)}", name, part, own.answered), part, {"": own.answered}


def _selects(group: SheetGroup, table: Any, rows: Sequence[StatementRows], limit: float) -> Iterator[Sheet]:
    """Yield the sheets of the SELECT statements of a table."""
    for one, own in zip(selected_rows(table, MOST_SHOWN) if rows else [], rows, strict=True):
        columns = [name for name, _ in one["columns"]]
        yield statement_sheet(group, one["name"], one["sql"], columns, one["rows"], flag_rows(own, limit))


def _promise(run: Run, epsilon: float, delta: float) -> list[str]:
    """Return sentences on the protection of a release: unit and bound, noise and cost, attack risk.

    `protects` describes the unit: its words, and how many of its rows count. Without a unit each row is protected.
    """
    if not run.manifest["private"]:
        return ["Nothing is protected: the job sets a seed, so anyone can compute the noise. For tests only."]
    protects = run.protects
    unit = (
        f"{protects.words} together; {protects.counted}" if protects.counted else "every single row, which counts once"
    )
    return [
        f"The release protects {unit}.",
        f"Noise hides whether they are in the data: the cost is {_cost(epsilon, delta)}.",
        run.attack_risk.sentence,
    ]


def _cost(epsilon: float | None, delta: float) -> str:
    if epsilon is None or math.isinf(epsilon):
        return "an unlimited ε"
    return f"ε = {figure(epsilon)}" + (f" at δ = {power(delta)}" if delta else "")


def accounts(runs: Iterator[tuple[Run, Edition]] | Any, ledger: str | None) -> Iterator[dict[str, Any]]:
    """Yield the cost of the releases of each dataset: by its ledger, or by their manifests if no ledger is readable.

    `ledger` is the ledger that the user named; otherwise each run's own is read if it is there.
    """
    series = dict[tuple[str, str], list[Edition]]()
    for run, edition in runs:
        place = ledger or str(run.job.privacy.ledger)
        series.setdefault((place, run.manifest["privacy"]["dataset"]), []).append(edition)
    # by dataset, then by ledger
    for (place, dataset), editions in sorted(series.items(), key=lambda one: one[0][::-1]):
        stated = _read_ledger(place, dataset, editions, ledger is not None)
        name = public_name(dataset)
        shown = _by_manifest(editions) if stated is None else _by_ledger(stated, editions, name)
        promises = list(dict.fromkeys(one.promise[0] for one in editions))
        yield {
            "name": ", ".join(dict.fromkeys(one.title for one in editions)),
            **shown,
            "sentences": [*shown["sentences"], *promises],
        }


def _read_ledger(place: str, dataset: str, editions: Sequence[Edition], is_given: bool) -> dict[str, Any] | None:
    """Return the account of a dataset on a ledger; None if a ledger that was not given cannot be read or lacks it.

    `editions` are the releases that the site shows. All of them must have an entry on the ledger; otherwise the account
    would be incomplete.
    """
    with suppress(*([] if is_given else [DpscaleError, OSError])), Ledger.open(place, create=False) as opened:
        found: dict[str, Any] = next(iter(opened.summary(dataset)["datasets"].values()))
        known = {row["release"] for row in found["releases"]}
        if not (missing := [one.release for one in editions if one.release not in known]):
            return found
        if is_given:
            raise JobError("--ledger", f"no entry of release {missing[0]}", "the ledger that its run was charged to",
                           "name that ledger, or leave the option out")  # fmt: skip
    return None


def _by_ledger(stated: Mapping[str, Any], editions: Sequence[Edition], name: str) -> dict[str, Any]:
    """Return what the site shows of the ledger: sentences on cost and cap, notes, and a row for each release.

    `stated` is the account of the dataset in the summary of the ledger.
    """
    releases, spent, cap = stated["releases"], stated["spent"], stated["cap"]
    number = f"{len(releases):,} release{'s' * (len(releases) != 1)}"
    data = name if name == public_name(None) else f"the dataset {name}"
    sentences = [f"{number} of {data} cost {_cost(spent['epsilon'], spent['delta'])} in total. This is the state of the"
            " ledger, which counts every release of these data, also those that are not on this site."]  # fmt: skip
    if cap:
        remaining = stated["remaining_epsilon"]
        more = f"one more release may cost {_cost(remaining, cap['delta'])}" if remaining else "nothing is left"
        sentences.append(f"The cap of the total is {_cost(cap['epsilon'], cap['delta'])}; {more}.")
    else:
        sentences.append("There is no cap on the total.")
    # a release on the site has the address of its page
    rows = [{"release": row["release"], "day": row["reserved_at"][:10], "epsilon": row["own"]["epsilon"],
             "delta": row["own"]["delta"], "state": row["state"], **_page_of(row["release"], editions)}
            for row in releases]  # fmt: skip
    return {"sentences": sentences, "notes": stated["notes"], "releases": rows}


def _by_manifest(editions: Sequence[Edition]) -> dict[str, Any]:
    """Return the costs that releases state themselves; their sums bound the cost of all of them together.

    The result has the form of the account that a ledger gives: sentences, notes and a row for each release, ordered by
    time.
    """
    ordered = sorted(editions, key=lambda one: (one.moment, one.release))
    epsilon, delta = (sum(getattr(one, name) for one in ordered) for name in ("epsilon", "delta"))
    said = f"No ledger could be read, so that this page has {SUBSET} alone, with the costs that they state. Together"
    rows = [{"release": one.release, "day": one.day, "epsilon": one.epsilon if one.private else None,
             "delta": one.delta, "state": "released", **_page_of(one.release, ordered)} for one in ordered]  # fmt: skip
    return {
        "sentences": [f"{said} they cost at most {_cost(epsilon, delta)}, the sums."],
        "notes": [],
        "releases": rows,
    }


def _page_of(release: str, editions: Sequence[Edition]) -> dict[str, str]:
    """Return address and title of the page of a release; empty texts without one."""
    page = next((one for one in editions if release == one.release or release.startswith(f"{one.release}-")), None)
    return {"address": f"{page.home}/index.html" if page else "", "title": page.title if page else ""}
