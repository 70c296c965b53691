"""Commands that add to a release: `refine` more budget, `release-period` the next period of a growing table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import figure
from dpscale.base.errors import JobError
from dpscale.cli.group import Bars, json_option, main, quiet_option, scheduler_option
from dpscale.cli.run import print_run

if TYPE_CHECKING:
    from dpscale.runs.refine import Refinement

opening = LazyModule("dpscale.runs.opening")
refining, runner = LazyModule("dpscale.runs.refine"), LazyModule("dpscale.runs.stages.runner")


@main.command()
@click.argument("run_dir")
@click.option("--epsilon", type=float, required=True, help="Budget of the new release alone.")
@click.option("--delta", type=float, help="Default: that of the job.")
@click.option("--job", metavar="JOB", help="A job on the same data with another workload.")
@click.option("--run-dir", "new", metavar="NEW", help="The new run directory (default: RUN_DIR with -refined).")
@click.option("--plan", "plan_only", is_flag=True, help="Print the expected errors; reads no data, spends no budget.")
@scheduler_option
@quiet_option
@json_option
def refine(
    run_dir: str,
    epsilon: float,
    delta: float | None,
    job: str | None,
    new: str | None,
    plan_only: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Spend more budget on the records of a measured run: a new release, pooled with the earlier values.

    The new run has its own release id, charge and directory. The same command again resumes it. Squared mu adds over
    the releases, epsilon does not: two releases at epsilon 0.5 and delta 1e-9 together have epsilon 0.718.
    """
    planned = refining.plan_refinement(run_dir, epsilon, delta, job)
    if plan_only:
        _print(_plan_summary(planned, scheduler, quiet), as_json)
        return
    run = refining.start_refinement(planned, new)
    repeated = runner.check_repeat(run)
    with runner.remove_on_error(run), Bars(quiet) as progress:
        runner.run_stages(run, scheduler=scheduler, progress=progress)
    plan = run.measurement_plan
    figures, sentence = plan.summary(run.planning_problem.budget), plan.instalments.sentence(plan.cost)
    print_run(run, repeated, as_json, figures, sentence)


def _plan_summary(planned: Refinement, scheduler: str | None, quiet: bool) -> dict[str, Any]:
    """Return the figures of a refinement that is not started."""
    from dpscale.engine import resolve
    from dpscale.runs.stages.preview import expected_errors

    problem = planned.job.planning_problem(planned.workload)
    with Bars(quiet) as progress:
        engine = resolve(scheduler=scheduler or planned.job.engine.scheduler, progress=progress)
        try:
            plan, costs = refining.preview_refinement(planned, engine), planned.costs
        finally:
            engine.close()
    return {"run_dir": str(planned.default_directory), "mechanism": plan.mechanism, **plan.summary(problem.budget),
            **expected_errors(plan, problem.budget),
            "together": costs.sentence(plan.cost)}  # fmt: skip


def _print(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(summary))
        return
    for key, value in summary.items():
        if value is not None and key not in ("families", "levels", "together"):
            click.echo(f"{key.replace('_', ' '):>25}: {figure(value) if isinstance(value, float) else value}")
    for one in summary["families"]:
        click.echo(f"{one['error']:>25.4g}  {one['family']}, {one['sets']:,} sets, {one['queries']:,} queries")
    click.echo(summary["together"])


@main.command("release-period")
@click.argument("run_dir")
@click.argument("period")
@click.option("--empty", is_flag=True, help="Release it even if no records of it have arrived.")
@scheduler_option
@quiet_option
@json_option
def release_period(run_dir: str, period: str, empty: bool, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Release the next period of a growing table, for example 2026-02; a released one is not drawn again."""
    from dpscale.runs.periods.stages import release_next

    run = opening.open_run(run_dir)
    if run.job.kind != "periods" or run.manifest.get("kind") != "periods":
        raise JobError("run directory", f"{run.path} is not the run of a growing table",
                       "the run directory of a job with data.period",
                       "use `dpscale run` for a job of one moment")  # fmt: skip
    with Bars(quiet) as progress:
        release_next(run, period, scheduler=scheduler, progress=progress, empty=empty)
    summary = {"run_dir": str(run.path), "period": period, "released": run.released,
               "privacy": run.manifest["privacy"]}  # fmt: skip
    click.echo(json.dumps(summary) if as_json else f"{period}: released, {len(run.released)} of {len(run.labels)}")
