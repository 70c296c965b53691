"""Text of `dpscale plan`: figures, errors in records, answers over periods, advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpscale.base.display import figure, percent, whole

if TYPE_CHECKING:
    from dpscale.job import TableJob

LATER = ("families", "levels", "time", "curve", "needed", "compared", "advice", "attack_risk")
FOR_MACHINES = ("counted_joints", "counted_by_bit_planes", "counting_saved", "stationary")


def plan_text(summary: dict[str, Any]) -> str:
    """Return the summary as text: figures, errors in records, advice, attack risk."""
    lines = [f"{key.replace('_', ' '):>33}: {text}" for key, value in summary.items()
             if key not in LATER + FOR_MACHINES and (text := _figure(key, value))]  # fmt: skip
    if summary["families"]:
        lines += [
            "",
            "expected error of an answer (root mean square, in records if no unit is named), and the worst set",
        ]
        lines += [_family(one) for one in summary["families"]]
        title = "error by level of a hierarchy, over the cells of all tables at the level"
        lines += ["", title, *map(_level, summary["levels"])] if summary["levels"] else []
        at = "  ".join(f"{one['epsilon']:g}: {one['error']:.3g}" for one in summary["curve"])
        lines += ["", f"error by epsilon  {at}"]
    if "time" in summary:
        lines += ["", *_time(summary["time"])]
    if summary["needed"]:
        needed = summary["needed"]
        lines.append(f"an error of {needed['error']:g} {needed['unit']} needs epsilon = {needed['epsilon']:.4g}")
    if summary["compared"]:
        sums = any(one["unit"] != "records" for one in summary["families"])
        unit = "in records" + ", of sums relative to half their range" * sums
        lines += ["", f"mechanisms, with the error of an answer {unit}", *map(_mechanism, summary["compared"])]
    risk = [summary["attack_risk"]["sentence"]] if "attack_risk" in summary else []
    return "\n".join([*lines, "", *summary["advice"], *risk])


def _figure(key: str, value: Any) -> str:
    """Return a value formatted for reading; empty if there is none."""
    if key == "optimality_gap":
        return "" if value is None else f"{percent(value)}, certified"
    if isinstance(value, list):
        return "; ".join(value)
    return figure(value) if isinstance(value, float) else whole(value) if isinstance(value, int) else str(value or "")


def _family(one: dict[str, Any]) -> str:
    worst = one["worst"][0]
    sets = f"{one['sets']:,} sets, {one['queries']:,} queries"
    attributes, unit = ", ".join(worst["attributes"]) or "the total", one["unit"]
    return f"{one['error']:>10.4g}  {one['family']:<14} {sets:<28} {worst['error']:.4g}: {attributes}" + (
        "" if unit == "records" else f"  (in units of {unit})"
    )


def _level(one: dict[str, Any]) -> str:
    name, tables = f"{one['hierarchy']}: {one['level'] or 'without a level'}", one["sets"]
    cells = f"{one['queries']:,} cells of {tables:,} table{'s' * (tables > 1)}"
    return f"{one['error']:>10.4g}  {name:<28} {one['nodes']:>9,} nodes, {cells}"


def _mechanism(one: dict[str, Any]) -> str:
    error = "—" if one["error"] is None else f"{one['error']:.4g}"
    return f"{error:>10}  {one['mechanism']:<24} {one['why'][:100]}"


def time_summary(job: TableJob) -> dict[str, Any]:
    """Return the promise of a growing table and the relative errors of its answers over the horizon.

    Parameters
    ----------
    job : TableJob

    Returns
    -------
    dict
        `relative_error` is that of the first and of the last period and the root mean square, relative to one release
        of one table that has the whole budget.
    """
    from dpscale.job.periods import promise
    from dpscale.optimize.time_strategy import plan_time

    period, settings = job.read_period(), job.periods
    plan = plan_time(period.listed, settings.answers, settings.window or 0, settings.max_periods_per_unit or 1,
                     job.privacy.noise)  # fmt: skip
    errors = {
        kind: {"first": plan.variance(kind, 0) ** 0.5, "last": plan.variance(kind, plan.horizon - 1) ** 0.5,
               "typical": plan.mean_variance(kind) ** 0.5}
        for kind in plan.answers
    }  # fmt: skip
    return {"periods": plan.horizon, "first": str(period.labels[0]), "last": str(period.labels[-1]),
            "protects": str(promise(job.data, settings, period)), "relative_error": errors,
            "certified": plan.gap if plan.bound else None}  # fmt: skip


def _time(time: dict[str, Any]) -> list[str]:
    errors = time["relative_error"].items()
    gap = "" if time["certified"] is None else f"; {percent(time['certified'])} above the minimum, certified"
    return [
        f"{time['periods']} periods, {time['first']} to {time['last']}, under one charge; protects {time['protects']}",
        f"errors are multiples of those above: root mean square, first and last period{gap}",
        *(f"{one['typical']:>10.4g}  {kind:<14} {one['first']:.4g} to {one['last']:.4g}" for kind, one in errors),
    ]
