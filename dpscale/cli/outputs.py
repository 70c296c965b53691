"""Commands on the results of runs: `evidence`, `publish`, `site`, `model` and `compare`."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import epsilon_text
from dpscale.base.errors import JobError
from dpscale.cli.check import installation_checks
from dpscale.cli.group import Bars, json_option, main, quiet_option, scheduler_option
from dpscale.storage.files import read_text, write_whole

if TYPE_CHECKING:
    from dpscale.api.release import Release
    from dpscale.runs.run import Run

FORMATS = ["csv", "parquet", "xlsx", "px", "json-stat", "sdmx-csv"]
opening, estimates = LazyModule("dpscale.runs.opening"), LazyModule("dpscale.runs.estimates")


@main.command()
@click.argument("run_dir", required=False)
@click.option("--key", type=click.Path(), help="Sign the bundle with this Ed25519 private key (PEM).")
@click.option("--selftest", "selftest_file", type=click.Path(), help="Output of `dpscale selftest --json`.")
@click.option("--check", "folder", type=click.Path(), help="Check the bundle in this folder; needs no run.")
@click.option("--public-key", type=click.Path(), help="With --check: the public key of the required signer (PEM).")
@click.option("--ledger", help="With --check: the curator's ledger (a file or an address), or the head of its chain.")
@click.option("--registry", is_flag=True, help="Print an entry for registries of deployments, as JSON, instead.")
@click.option("--schema", is_flag=True, help="With --registry: print the JSON Schema of entries; needs no run.")
@quiet_option
@json_option
def evidence(
    run_dir: str | None,
    key: str | None,
    selftest_file: str | None,
    folder: str | None,
    public_key: str | None,
    ledger: str | None,
    registry: bool,
    schema: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write DIR/evidence, a bundle from which an auditor can check a release of any tables; or check a bundle."""
    if registry or schema:
        _print_registry(run_dir, schema)
        return
    if (run_dir is None) == (folder is None):
        raise JobError("evidence", "neither a run directory nor --check, or both", "one of them", "name one")
    if folder is not None:
        _check(folder, public_key, ledger, as_json)
        return
    from dpscale.audit.evidence.bundle import check_charged, check_whole, write_bundle
    from dpscale.audit.evidence.envelope import signer

    run, signing = opening.open_run(run_dir or ""), signer(Path(key)) if key else None
    check_whole(run)
    run.require("measure")
    check_charged(run)  # before the self-test, which takes half a minute
    place = write_bundle(run, _selftest(selftest_file, quiet), signing)
    click.echo(json.dumps({"evidence": str(place), "signed": key is not None}) if as_json else f"evidence: {place}")


def _print_registry(run_dir: str | None, schema: bool) -> None:
    """Print the registry entry of a run, or the schema of entries."""
    from dpscale.audit.evidence.bundle import check_whole
    from dpscale.audit.registry import REGISTRY_SCHEMA, registry_entry

    if (run_dir is None) != schema:
        raise JobError("evidence --registry", "neither a run directory nor --schema, or both", "one of them",
                       "name one")  # fmt: skip
    if schema:
        click.echo(json.dumps(REGISTRY_SCHEMA, indent=1))
        return
    run = opening.open_run(run_dir or "")
    check_whole(run)
    run.require("measure")
    click.echo(json.dumps(registry_entry(run), indent=1, ensure_ascii=False))


def _selftest(given: str | None, quiet: bool) -> list[dict[str, Any]]:
    """Return the given results of the self-test, or those of this installation."""
    if given is None:
        return installation_checks(quiet)
    try:
        checks = [
            {name: check[name] for name in ("name", "passed", "detail")} for check in json.loads(read_text(Path(given)))
        ]
    except (OSError, ValueError, TypeError, KeyError):
        raise JobError("--selftest", f"{given} cannot be read", "the output of `dpscale selftest --json`",
                       "leave it out to run the self-test now") from None  # fmt: skip
    if not checks:
        raise JobError("--selftest", f"{given} has no check", "the output of `dpscale selftest --json`",
                       "leave it out to run the self-test now")  # fmt: skip
    return checks


def _heads(ledger: str) -> dict[str, int]:
    """Return the links of a ledger's hash chains, by digest, with the number of later links; 0 for a given head."""
    from dpscale.ledger import Ledger

    if re.fullmatch("[0-9a-f]{64}", ledger):
        return {ledger: 0}
    with Ledger.open(ledger, create=False) as opened:
        return opened.heads()


def _check(folder: str, public_key: str | None, ledger: str | None, as_json: bool) -> None:
    """Check a bundle and print what was found, as lines or as JSON."""
    from dpscale.audit.evidence.check import check_bundle
    from dpscale.audit.evidence.optimality import check_optimality

    key, heads = Path(public_key) if public_key else None, _heads(ledger) if ledger else None
    found = check_bundle(Path(folder), key, heads) | {"optimality": check_optimality(Path(folder))}
    if as_json:
        click.echo(json.dumps(found))
        return
    for line in _lines(found):
        click.echo(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what the check of a bundle says: signature, claims, counts of draws, and facts that cannot be verified.

    `found` is the result of `check_bundle`.
    """
    yield f"signed by the key {found['signed_by']}" if found["signed_by"] else "unsigned: anyone may have made it"
    if not found["private"]:
        yield "NOT PRIVATE: the noise has a seed, and anyone can compute it"
    for name in ("release", "dataset"):
        claim = found[name]
        yield f"{name}: epsilon {epsilon_text(claim['epsilon'], 9)} at delta {claim['delta']:g}, as recomputed"
    yield f"parts: {', '.join(found['parts'])}"
    yield f"{found['draws']} draws and {found['selections']} selections, their sensitivities recomputed from integers"
    if found["by_columns_alone"]:
        yield f"{found['by_columns_alone']} strategies are too large: only the norms of their columns are checked"
    verdict = "passed" if found["selftest_passed"] else "FAILED"
    yield f"self-test {verdict}, according to the bundle ({found['selftest_checks']} checks)"
    # the ledger was given, and its chain contains that of the bundle
    if found["later_entries"] is not None:
        later = f"; the ledger has {found['later_entries']} later entries" if found["later_entries"] else ""
        yield f"its ledger entries match the chain with the head {found['head']}{later}"
    if not found["own_scripts"]:
        yield "its scripts differ from those of this version of dpscale: read them before you run them"
    yield _optimality_line(found["optimality"])
    for fact in found["unverified"]:
        yield f"CANNOT BE VERIFIED: {fact}"


def _optimality_line(found: dict[str, Any]) -> str:
    """Return the result of the convex programs, or why none was solved, as a sentence.

    `found` is the result of `check_optimality`.
    """
    if not found["solved"]:
        return f"optimality of strategies not checked: {found['why']}"
    left_out, too_large = found["left_out"], found["too_large"]
    others = f"; {left_out} programs left out and {too_large} spaces too large" if left_out or too_large else ""
    return (f"{found['solved']} convex programs of the Gram matrices in the bundle solved by cvxpy: the squared error "
            f"of a strategy is at most {found['ratio']:.9f} times the least{others}")  # fmt: skip


@main.command()
@click.argument("run_dir")
@click.option("--out", metavar="FOLDER", help="The output folder (default: RUN_DIR/published).")
@click.option(
    "--set", "sets", multiple=True, metavar="A,B", help="An attribute set; repeatable (default: all of the workload)."
)
@click.option("--degree", type=click.IntRange(min=1), help="Only sets with this number of attributes.")
@click.option("--limit", type=click.FloatRange(min=0), default=0.5, show_default=True,
              help="Flag counts with a larger relative standard error.")  # fmt: skip
@click.option("--format", "formats", type=click.Choice(FORMATS), multiple=True, default=("csv",),
              show_default=True, help="Repeatable; xlsx requires the extra dpscale[excel].")  # fmt: skip
@click.option("--minimum", type=click.IntRange(min=0), default=0, metavar="N", help="Hide counts below N.")
@json_option
def publish(
    run_dir: str,
    out: str | None,
    sets: tuple[str, ...],
    degree: int | None,
    limit: float,
    formats: tuple[str, ...],
    minimum: int,
    as_json: bool,
) -> None:
    """Write whole, non-negative tables that add up, with a readme and a codebook, at no cost.

    A job of several tables has a folder for each of them; a single table is written into the folder itself.
    """
    from dpscale.api.release import Release
    from dpscale.runs.manifest import check_outputs

    folder = Path(out) if out else Path(run_dir) / "published"
    attribute_sets = [[name.strip() for name in names.split(",")] for names in sets]
    release = Release.open(run_dir)
    # refuse a run whose files were changed
    for table in release.tables.values():
        check_outputs(table.path, table.manifest["stages"])
    # the only table is the release itself
    folders = {name: folder if table is release else folder / name for name, table in release.tables.items()}
    tables = {
        name: _publish_table(release.tables[name], place, attribute_sets, degree, limit, formats, minimum)
        for name, place in folders.items()
    }
    summary = {"published": str(folder), "tables": tables, **(tables["data"] if folder in folders.values() else {})}
    if as_json:
        click.echo(json.dumps(summary))
        return
    for name, facts in tables.items():
        left = f", {facts['left_out']} omitted (see its readme)" if facts["left_out"] else ""
        records = "" if facts["total"] is None else f" of {facts['total']:,} records"
        click.echo(f"{name}: {facts['sets']} tables{records}{left}")
    click.echo(f"published: {folder}")


def _publish_table(
    release: Release,
    folder: Path,
    sets: list[list[str]],
    degree: int | None,
    limit: float,
    formats: tuple[str, ...],
    minimum: int,
) -> dict[str, Any]:
    """Publish one table of a release into a folder and return its summary.

    `sets` are those of --set, lists of attributes; without them and --degree, the statements of the job are published
    too.
    """
    from dpscale.answers.publish import chosen, in_formats, publish as made, write_published
    from dpscale.runs.answers import published_statements

    table = opening.open_readable(release.path).table
    statements = [] if sets or degree else published_statements(table)
    requested = chosen(release.answered, sets, degree, bool(statements))
    published = in_formats(made(release.answered, requested, minimum, statements), formats)
    files = write_published(folder, release.domain, published, release.manifest["release"], limit, formats,
                            estimates.counted_words(table), minimum,
                            table.run.job.about.model_dump(exclude_none=True))  # fmt: skip
    return {
        "sets": sum(map(len, (published.tables, published.listed, published.numbers, published.statements))),
        "total": published.total,
        "left_out": len(published.left_out),
        "files": files,
    }


@main.command()
@click.argument("run_dir")
@click.option("--format", "form", type=click.Choice(["bif", "pgmpy"]), default="bif", show_default=True,
              help="A text file of the Bayesian Interchange Format, or a pickled network of pgmpy.")  # fmt: skip
@click.option("--out", metavar="FILE", help="The output file (default: RUN_DIR/model.bif or .pickle).")
@click.option("--table", metavar="NAME", help="The table of a run of several tables.")
@json_option
def model(run_dir: str, form: str, out: str | None, table: str | None, as_json: bool) -> None:
    """Write the fitted graphical model of a run as a Bayesian network, at no cost."""
    tables = opening.open_run(run_dir).tables
    if table not in tables and (table is not None or len(tables) > 1):
        given = "not given" if table is None else f"{table!r}"
        raise JobError("--table", given, ", ".join(tables), "name one of the run's tables")
    # the table of a run of one table needs no name
    part = tables[table or next(iter(tables))]
    fitted, labels = estimates.graphical_model_of(part)
    path = Path(out) if out else part.path / ("model.bif" if form == "bif" else "model.pickle")
    content = fitted.to_bif(labels).encode() if form == "bif" else pickle.dumps(fitted.to_pgmpy("bayesian", labels))
    write_whole(path, content)
    click.echo(json.dumps({"model": str(path), "format": form}) if as_json else f"model: {path}")


@main.command()
@click.argument("run_dir")
@click.argument("data", nargs=-1, required=True)
@click.option("--out", required=True, metavar="ELSEWHERE", help="A new or empty folder, outside every run directory.")
@click.option(
    "--target", metavar="NAME", help="The attribute that models predict (default: the last one with the fewest values)."
)
@click.option(
    "--sdmetrics", is_flag=True, help="Add the scores of SDMetrics to the report (pip install 'dpscale[sdmetrics]')."
)
@scheduler_option
@quiet_option
@json_option
def compare(
    run_dir: str,
    data: tuple[str, ...],
    out: str,
    target: str | None,
    sdmetrics: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare synthetic rows of a run with DATA in a PRIVATE report, for people who may see the data.

    With several tables, DATA are given as NAME=PATH and each table has a report in its own folder. The rows of one
    period of a growing table are in RUN_DIR/periods/PERIOD/rows.
    """
    from dpscale.evaluation import compare
    from dpscale.evaluation.comparison import FIGURES
    from dpscale.evaluation.models import check_learner
    from dpscale.evaluation.sdmetrics_scores import check_sdmetrics

    if sdmetrics:
        check_sdmetrics()  # its extra has scikit-learn too
    check_learner()
    for path, (paths, folder) in _compared(run_dir, data, out).items():
        with Bars(quiet) as progress:
            page = compare(path, paths, folder, target, scheduler, progress, sdmetrics)
        summary = {"report": str(page), "figures": str(page.with_name(FIGURES)), "differentially_private": False}
        click.echo(json.dumps(summary) if as_json else f"private report, not for publication: {page}")


def _compared(run_dir: str, data: Sequence[str], out: str) -> dict[Path, tuple[list[str], str | Path]]:
    """Return the paths of the data and the folder of the report for each part of a run with rows, by its path."""
    found = opening.open_part(run_dir)
    if getattr(found, "folder", ""):  # a part of a run, such as the rows of a period
        return {found.path: (list(data), out)}
    run = getattr(found, "run", found)
    return {run.tables[name].path: (paths, Path(out) / name if run.tables[name].folder else out)
            for name, paths in _by_table(run, data).items()}  # fmt: skip


def _by_table(run: Run, data: Sequence[str]) -> dict[str, list[str]]:
    """Return the paths of each table, given as NAME=PATH; those of the only table need no name."""
    found: dict[str, list[str]] = {}
    for given in data:
        name, _, path = given.partition("=")
        name, path = ("data", given) if "data" in run.tables else (name, path)  # "data" is the only table
        if name not in run.tables or not path:
            raise JobError("DATA", f"{given!r}", f"NAME=PATH, where NAME is {', '.join(run.tables)}",
                           "name the table of each path")  # fmt: skip
        found.setdefault(name, []).append(path)
    return found


@main.command()
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True)
@click.option("--out", metavar="FOLDER", required=True, help="A new or empty folder, or an older site.")
@click.option("--title", default="Published tables", show_default=True, help="The title of the site.")
@click.option("--ledger", metavar="LEDGER", help="The ledger of the releases (default: that of each job).")
@click.option("--limit", type=click.FloatRange(min=0), default=0.5, show_default=True,
              help="Flag counts with a larger relative standard error.")  # fmt: skip
@click.option("--minimum", type=click.IntRange(min=0), default=0, metavar="N", help="Hide counts below N.")
@json_option
def site(
    run_dirs: tuple[str, ...], out: str, title: str, ledger: str | None, limit: float, minimum: int, as_json: bool
) -> None:
    """Write a static site of the published tables of releases, which needs no server, at no cost."""
    from dpscale.api.site import read_site

    found = read_site(run_dirs, Path(out), title, ledger, limit, minimum).write()
    if as_json:
        click.echo(json.dumps({"site": out, **found}))
        return
    click.echo(f"releases: {found['releases']:,}, tables: {found['tables']:,}, pages: {found['pages']:,}")
    click.echo(f"site: {Path(out) / 'index.html'}")
