"""The command line: `dpscale run JOB.toml` and its kin.

Exit codes: 0 done; 2 the job, domain or data is wrong; 3 the budget refuses; 75 try again. With --json a command prints
one JSON object on stdout and nothing else there; progress goes to stderr.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from dpscale.cli.progress import Bars
from dpscale.errors import DpscaleError, TransientError


class _Group(click.Group):
    """Turns dpscale's errors into one sentence on stderr and their exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except DpscaleError as error:
            click.echo(f"dpscale: {error}", err=True)
            context.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("dpscale: stopped; the same command goes on where it left, and spends nothing twice", err=True)
            context.exit(TransientError.exit_code)


scheduler_option = click.option("--scheduler", metavar="SPEC", help="threads, processes, synchronous, tcp://…, tls://…")
quiet_option = click.option("--quiet", is_flag=True, help="No progress on stderr.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


@click.group(cls=_Group)
@click.version_option(package_name="dpscale")
def main() -> None:
    """Differentially private answers to very large workloads, on Dask."""


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Where the run is kept (default: runs/ and the job's digest).")
@scheduler_option
@quiet_option
@json_option
def run(job: str, run_dir: str | None, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Run all stages of a job; a run that was begun goes on where it left."""
    from dpscale.job import Job
    from dpscale.release import run_stages
    from dpscale.runs.run import RunDirectory

    directory = RunDirectory.create(Job.read(job), run_dir)
    with Bars(quiet) as progress:
        run_stages(directory, scheduler=scheduler, progress=progress)
    _tell_run(directory.path, directory.manifest, as_json)


def _tell_run(path: Path, manifest: dict[str, Any], as_json: bool) -> None:
    report = path / "report.html"
    told = {
        "run_dir": str(path),
        "report": str(report),
        "release": manifest["release"],
        "private": manifest["private"],
        "privacy": manifest["privacy"],
        "stages": manifest["stages"],
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    if not manifest["private"]:
        click.echo("dpscale: this run has a seed and is not private", err=True)
    click.echo(f"report: {report}")


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Keep the plan here, for the stages that follow.")
@scheduler_option
@quiet_option
@json_option
def plan(job: str, run_dir: str | None, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Plan a job: reads no data, spends nothing."""
    from dpscale.engine import resolve
    from dpscale.engine.counting import effort
    from dpscale.job import Job
    from dpscale.release import run_stages
    from dpscale.runs.run import RunDirectory
    from dpscale.stages.plan import make_plan

    read = Job.read(job)
    with Bars(quiet) as progress:
        engine = resolve(scheduler=scheduler or read.engine.scheduler, progress=progress)
        if run_dir is not None:
            directory = RunDirectory.create(read, run_dir)
            run_stages(directory, scheduler=scheduler, progress=progress, only="plan")
            made = directory.plan()
        else:
            made = make_plan(read, read.read_domain(), engine)
    needs = effort(made.domain, made.counted, read.engine.bytes, engine.workers)
    engine.close()
    _tell_plan(made, read.privacy, read.data.max_rows_per_unit or 1, needs, as_json)


def _tell_plan(made: Any, privacy: Any, rows_per_unit: int, needs: Any, as_json: bool) -> None:
    told = {
        "mechanism": made.mechanism,
        "queries": made.query_count,
        "counted_sets": len(made.counted),
        "counted_joints": needs.saving.joints,
        "counted_by_bit_planes": needs.saving.planes,
        "counting_saved": round(needs.saving.factor, 3),
        "noise": made.noise,
        **_errors_known(made, privacy, rows_per_unit),
        "passes_over_the_data": needs.passes,
        "tasks": needs.tasks,
        "memory_bytes": needs.memory,
        "notes": list(made.notes),
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    for key, value in told.items():
        click.echo(f"{key.replace('_', ' '):>16}: {value}")


def _errors_known(made: Any, privacy: Any, rows_per_unit: int) -> dict[str, Any]:
    """What is known of errors before any data is read: all for a matrix mechanism, nothing for an adaptive one."""
    if not hasattr(made, "rmse"):
        return {"rho": float(made.setting.rho), "candidates": len(made.setting.candidates)}
    gap = made.optimality_gap
    rmse = rows_per_unit * made.rmse(privacy.cost)
    return {"measurements": len(made.blocks), "privacy_cost": privacy.budget, "rmse": rmse,
            "optimality_gap": gap if math.isfinite(gap) else None}  # fmt: skip


def _stage_command(name: str, doc: str) -> None:
    @main.command(name, help=doc)
    @click.argument("run_dir")
    @scheduler_option
    @quiet_option
    @json_option
    def command(run_dir: str, scheduler: str | None, quiet: bool, as_json: bool) -> None:
        from dpscale.release import run_stages
        from dpscale.runs.run import RunDirectory

        directory = RunDirectory(run_dir)
        with Bars(quiet) as progress:
            run_stages(directory, scheduler=scheduler, progress=progress, only=name)
        stage = {"stage": name, **directory.manifest["stages"][name]}
        click.echo(json.dumps(stage) if as_json else f"{name}: {stage['state']}")


_stage_command("measure", "Count, charge the ledger and draw the noise of a planned run.")
_stage_command("reconstruct", "Write the answers of a measured run.")
_stage_command("report", "Write the report of an answered run.")


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Where the run is kept, on storage that the workers share.")
@click.option("--scheduler", metavar="SPEC", required=True, help="tcp://HOST:PORT or tls://HOST:PORT")
@json_option
def submit(job: str, run_dir: str | None, scheduler: str, as_json: bool) -> None:
    """Run all stages of a job on a cluster, its driver too, and come back at once."""
    from dpscale.cli import driver
    from dpscale.engine.connect import connected
    from dpscale.job import Job
    from dpscale.runs.run import RunDirectory

    directory = RunDirectory.create(Job.read(job), run_dir)
    with connected(scheduler) as client:
        found = driver.submit(directory, client)
    told = {"run_dir": str(directory.path), **found}
    click.echo(json.dumps(told) if as_json else f"{found['state']}: dpscale wait {directory.path}")


@main.command()
@click.argument("run_dir")
@json_option
def status(run_dir: str, as_json: bool) -> None:
    """Tell which stages of a run are done, and how its driver on the cluster is."""
    from dpscale.cli import signs
    from dpscale.runs.run import RunDirectory

    run = RunDirectory(run_dir)
    driven = signs.told(run.path)
    states = run.states(signs.at_work(driven))
    if as_json:
        click.echo(json.dumps(run.manifest | {"states": states} | ({"driver": driven} if driven else {})))
        return
    for name, state in states.items():
        click.echo(f"{name:>12}: {state}{', run the job again to go on' if state == 'stopped' else ''}")
    if driven:
        working = driven.get("working")
        tasks = f", {working['tasks']} {working['done']} of {working['total']}" if working else ""
        click.echo(f"{'driver':>12}: {'silent' if driven['silent'] else driven['state']}{tasks}")


@main.command()
@click.argument("run_dir")
@click.option("--seconds", type=float, help="Give up after so long (exit code 75); the run goes on.")
def wait(run_dir: str, seconds: float | None) -> None:
    """Wait for a submitted run; ends with its exit code."""
    from dpscale.cli import driver
    from dpscale.runs.run import RunDirectory

    run = RunDirectory(run_dir)
    ended = driver.wait(run.path, seconds)
    if ended["exit_code"]:
        click.echo(f"dpscale: {ended['error']}", err=True)
        raise click.exceptions.Exit(ended["exit_code"])
    click.echo(f"report: {run.path / 'report.html'}")


@main.command()
@click.argument("run_dir")
def cancel(run_dir: str) -> None:
    """Stop a submitted run at its next task; a later submit goes on from there."""
    from dpscale.cli import driver
    from dpscale.runs.run import RunDirectory

    driver.cancel(RunDirectory(run_dir).path)


@main.group()
def ledger() -> None:
    """What was spent, and the caps."""


@ledger.command("show")
@click.argument("path")
@json_option
def ledger_show(path: str, as_json: bool) -> None:
    """Show spent, reserved and remaining budget, per release and in total."""
    from dpscale.cli.ledgertext import ledger_text
    from dpscale.privacy.ledger import Ledger

    with Ledger.open(path, create=False) as opened:
        summary = opened.summary()
    click.echo(json.dumps(summary) if as_json else ledger_text(summary))


@ledger.command("cap")
@click.argument("path")
@click.option("--dataset", required=True)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
def ledger_cap(path: str, dataset: str, epsilon: float, delta: float) -> None:
    """Cap what all releases of a dataset may cost together."""
    from dpscale.privacy.ledger import Ledger

    with Ledger.open(path) as opened:
        click.echo(str(opened.set_cap(dataset, epsilon, delta)))


@main.group()
def domain() -> None:
    """Domain files."""


@domain.command("sketch")
@click.argument("data")
def domain_sketch(data: str) -> None:
    """Draft a domain file from data. The draft is PRIVATE: it tells of single records."""
    from dpscale.tables.sketch import WARNING, sketch

    click.echo(WARNING, err=True)
    click.echo(sketch(data))


@main.command()
@json_option
def selftest(as_json: bool) -> None:
    """Audit this installation: noise, stability, and what an attacker can learn, each with planted violations."""
    from dpscale.audit import selftest as audit

    results = audit()
    if as_json:
        click.echo(json.dumps([{"name": name, "passed": passed, "detail": detail} for name, passed, detail in results]))
    else:
        for name, passed, detail in results:
            click.echo(f"{'ok' if passed else 'FAILED':<6} {name}: {detail}")
    if not all(passed for _, passed, _ in results):
        raise click.exceptions.Exit(1)


@main.command()
@click.option("--folder", default="dpscale-demo", show_default=True, help="Where the demo is kept.")
@scheduler_option
@quiet_option
def demo(folder: str, scheduler: str | None, quiet: bool) -> None:
    """The main job on sample data: the RAND health insurance experiment."""
    from dpscale.cli.demo import run_demo

    with Bars(quiet) as progress:
        text = run_demo(Path(folder), scheduler, progress)
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
