"""Commands for runs whose driver is on a cluster: `submit`, `status`, `wait`, `cancel`."""

from __future__ import annotations

import json

import click

from dpscale.base import LazyModule
from dpscale.cli.group import fresh_option, json_option, main

opening = LazyModule("dpscale.runs.opening")
driver, driver_status = LazyModule("dpscale.cli.driver"), LazyModule("dpscale.cli.driver_status")
RESUME = {"stopped": ", run the job again to resume", "cancelled": ", submit it again to resume"}


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="The run directory, on storage that the workers share.")
@click.option("--scheduler", metavar="SPEC", required=True, help="tcp://HOST:PORT or tls://HOST:PORT")
@fresh_option
@json_option
def submit(job: str, run_dir: str | None, scheduler: str, fresh: bool, as_json: bool) -> None:
    """Run all stages of a job on a cluster, including the driver, and return at once."""
    from dpscale.engine.connect import open_client
    from dpscale.runs.stages.runner import check_repeat

    directory = opening.begin_run(opening.read_job(job), run_dir, fresh, files_accessible=False)
    directory.check_open("measure")
    check_repeat(directory)
    with open_client(scheduler) as client:
        driven = driver.submit(directory, client)
    summary = {"run_dir": str(directory.path), **driven}
    click.echo(json.dumps(summary) if as_json else f"{driven['state']}: dpscale wait {directory.path}")


@main.command()
@click.argument("run_dir")
@json_option
def status(run_dir: str, as_json: bool) -> None:
    """Print the state of each stage of a run, and of its driver on the cluster."""
    run = opening.open_run(run_dir)
    driven = driver_status.read_status(run.path)
    working = driver_status.at_work(driven)
    states, parts = run.states(working), {name: one.states(working) for name, one in run.parts.items()}
    if as_json:
        added = {"states": states, **({"tables": parts} if parts else {}), **({"driver": driven} if driven else {})}
        click.echo(json.dumps(run.manifest | added))
        return
    for name, state in states.items():
        click.echo(f"{name:>12}: {state}{RESUME.get(state, '')}")
    for name, own in parts.items():
        click.echo(f"{name:>12}: {', '.join(f'{stage} {state}' for stage, state in own.items())}")
    if run.ended:
        click.echo(f"{'ended':>12}: {run.ended['how']} at {run.ended['at']}")
    if driven:
        task = driven.get("working")
        tasks = f", {task['tasks']} {task['done']} of {task['total']}" if task else ""
        click.echo(f"{'driver':>12}: {'silent' if driven['silent'] else driven['state']}{tasks}")


@main.command()
@click.argument("run_dir")
@click.option("--seconds", type=float, help="Stop waiting after this time (exit code 75); the run continues.")
def wait(run_dir: str, seconds: float | None) -> None:
    """Wait for a submitted run and exit with its exit code."""
    run = opening.open_run(run_dir)
    ended = driver.wait(run.path, seconds)
    if ended["exit_code"]:
        click.echo(f"dpscale: {ended['error']}", err=True)
        raise click.exceptions.Exit(ended["exit_code"])
    click.echo(f"report: {run.path / 'report.html'}")


@main.command()
@click.argument("run_dir")
def cancel(run_dir: str) -> None:
    """Stop a submitted run at its next task; a later submit resumes it."""
    driver.cancel(opening.open_run(run_dir).path)
