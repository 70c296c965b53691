"""`compare`: comparison of a run's rows with the data, as a page and a JSON file that are as private as the data.

It reads the run without changing it, spends no budget, and reports only the path of the page. Of an error only the type
is reported, as in every stage that reads records.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.answers.report import render
from dpscale.answers.report.figures import COLOURS, drawing, new_figure, svg
from dpscale.base import VERSION
from dpscale.base.display import figure
from dpscale.base.error_redaction import discreetly
from dpscale.base.errors import DataError, JobError, TransientError
from dpscale.base.progress import Progress, lines, shown
from dpscale.engine.schedulers import Engine, resolve
from dpscale.evaluation.inputs import ComparedTable, names_of, open_data, open_rows, sample
from dpscale.evaluation.marginals import (
    choose_number_sets,
    choose_sets,
    compare_numbers,
    number_plot,
    score_all,
    summarise_by_degree,
    summarise_dependence,
)
from dpscale.evaluation.models import MOST, Curve, Target, check_learner, propensity, target_of, usefulness
from dpscale.evaluation.sdmetrics_scores import check_sdmetrics, sdmetrics_scores
from dpscale.runs.manifest import MANIFEST
from dpscale.runs.opening import open_part
from dpscale.runs.run import now
from dpscale.runs.table import TablePart
from dpscale.storage.files import checked_path, is_local, place, rename_over

FIELD, TAKES = "--out", "a new or empty folder outside every run directory"
MARKS = (MANIFEST, "job.toml")  # files of a run directory


@contextmanager
def output_folder(out: str | Path, run: Path) -> Iterator[Path]:
    """Create the output folder, or raise JobError if it is not allowed; remove its contents if the report fails."""
    folder = check_output(out, run)
    made = _make_folder(folder, out)
    try:
        yield folder
    except BaseException:
        for name in os.listdir(folder):  # the folder was empty, so this call created all files
            (folder / name).unlink()
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


def check_output(out: str | Path, run: Path) -> Path:
    """Return the resolved path of `out`; raise JobError if it is inside a run directory or not an empty folder."""
    located = place(checked_path(out, FIELD), FIELD)
    if not is_local(located):
        raise _refusal(f"{out}, in an object store", "name a local folder")

    folder = Path(os.path.realpath(located))
    for above in (folder, *folder.parents):
        if _is_run(above) or _same(above, run):
            where = "is" if above == folder else "lies in"
            raise _refusal(
                f"{out}, which {where} the run directory {above}",
                "choose a folder outside of it, because run directories may be published",
            )

    if os.path.lexists(folder) and not folder.is_dir():
        raise _refusal(f"{out}, which is not a folder", "choose another name")

    _check_empty(folder, out)
    return folder


def _check_empty(folder: Path, out: str | Path) -> None:
    """Refuse an output folder that contains anything."""
    with _refuse_os_errors(out):
        names = sorted(os.listdir(folder)) if folder.exists() else []
    if any(_is_run(folder / name) for name in names):
        raise _refusal(f"{out}, which contains a run directory", "choose another folder")
    if names:
        raise _refusal(f"{out}, which is not empty", "choose another folder, or empty it")


def _is_run(folder: Path) -> bool:
    return all(os.path.lexists(folder / name) for name in MARKS)


def _same(folder: Path, run: Path) -> bool:
    """Return whether both are the same folder; it may be mounted at two places."""
    with suppress(OSError):
        return os.path.samefile(folder, run)
    return False


def _make_folder(folder: Path, out: str | Path) -> bool:
    """Create the folder with access for its owner only; return whether it did not exist."""
    with _refuse_os_errors(out):
        there = folder.exists()
        if not there:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        folder.chmod(0o700)
    return not there


@contextmanager
def _refuse_os_errors(out: str | Path) -> Iterator[None]:
    """Convert an error of the disk to a refusal that names the output folder `out` and the reason."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise _refusal(f"{out} ({reason})", "fix the cause, or choose another folder") from None


def _refusal(got: str, remedy: str) -> JobError:
    return JobError(FIELD, got, TAKES, remedy)


def write(folder: Path, contents: Mapping[str, str]) -> None:
    """Write the files, each atomically, readable by the owner only. Raises TransientError if the disk refuses them."""
    for name, content in contents.items():
        try:
            _write(folder / f".{name}.partial", folder / name, content)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else type(error).__name__
            raise TransientError(
                FIELD, f"cannot write in {folder} ({reason})", "", "fix the cause and run again"
            ) from None


def _write(partial: Path, path: Path, content: str) -> None:
    """Write a new file that only its owner can read, then rename it to `path`, so that it is never incomplete."""
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    rename_over(partial, path)


Curves = Mapping[str, Mapping[str, Curve]]  # by title of the evaluation and name of the curve
BARS = {"halves": ("half of the data against the other half", "#bbbbbb"), "mean": ("rows", COLOURS[0]),
        "independent": ("independent attributes", COLOURS[1])}  # fmt: skip


def plots(marginals: Mapping[str, Any], dependence: Mapping[str, Any], curves: Curves) -> dict[str, str]:
    """Return all figures by name. Texts remain SVG text, so that the browser's fonts render any script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "marginal_plot": marginal_plot(marginals),
            "dependence_plot": dependence_plot(dependence),
            "curve_plot": curve_plot(curves),
        }


@drawing
def marginal_plot(marginals: Mapping[str, Mapping[str, Any]]) -> str:
    """Plot the distances of rows from the data by degree, with those of two halves of the data and of independence.

    BARS has the label and colour of each kind of distance; a group of bars is one degree.
    """
    marginals = {degree: marginal for degree, marginal in marginals.items() if marginal["sets"]}
    figure, axes = new_figure(2.8)
    for position, (key, (label, colour)) in enumerate(BARS.items()):
        # three bars beside each other for each degree
        at = [number + 0.26 * (position - 1) for number in range(len(marginals))]
        values = [marginal[key] for marginal in marginals.values()]
        axes.bar(at, values, width=0.24, color=colour, label=label)
        for where, value in zip(at, values, strict=True):
            axes.text(where, value, f"{value:.3f}" if value else "", ha="center", va="bottom", fontsize=7.5)

    axes.set_xticks(range(len(marginals)), [f"{degree}-way" for degree in marginals])
    axes.set(ylabel="L1 distance of shares")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return svg(figure)


@drawing
def dependence_plot(dependence: Mapping[str, Any]) -> str:
    """Plot the dependence of every pair of attributes in the rows against that in the data; "" without pairs."""
    if not dependence["pairs"]:
        return ""

    figure, axes = new_figure(4.2)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=0)
    axes.scatter(dependence["data"], dependence["rows"], s=16, alpha=0.7, color=COLOURS[0], linewidths=0)

    for one in dependence["worst"][:3]:
        axes.annotate(" × ".join(one["attributes"]), (one["data"], one["rows"]), (4, -3), textcoords="offset points",
                      fontsize=7.5, color="#555", parse_math=False)  # fmt: skip

    axes.set(xlabel="Cramér's V in the data", ylabel="in the rows", xlim=(-0.02, 1.05), ylim=(-0.02, 1.05))
    axes.set_box_aspect(0.7)
    return svg(figure)


@drawing
def curve_plot(curves: Curves) -> str:
    """Plot the ROC curves, one panel per evaluation; "" if there is none.

    A curve is (false alarms, hits) at all thresholds: the shares of negatives and of positives above each. The grey
    diagonal is a guess by chance.
    """
    defined = {title: {name: one for name, one in panel.items() if one[0]} for title, panel in curves.items()}
    panels = {title: panel for title, panel in defined.items() if panel}
    if not panels:
        return ""

    figure, _ = new_figure(3.2, len(panels))
    for axes, (title, panel) in zip(figure.axes, panels.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
        for colour, (name, (alarms, hits)) in zip(COLOURS, panel.items(), strict=False):
            axes.plot(alarms, hits, color=colour, linewidth=1.5, label=name)
        axes.set_title(title, fontsize=9, parse_math=False)
        axes.set(xlabel="false alarms", ylabel="true alarms", aspect="equal")
        if len(panel) > 1:
            axes.legend(frameon=False, fontsize=8, loc="lower right")

    return svg(figure)


PRIVATE = "Private: made from the data itself, not differentially private. Do not publish."
PAGE, FIGURES = "compare.html", "compare.json"
Content = dict[str, Any]


def compare(
    run_dir: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    target: str | None = None,
    scheduler: str | None = None,
    progress: Progress | None = lines,
    sdmetrics: bool = False,
) -> Path:
    """Write the private report of a run's rows against data into a folder, and return the page's path.

    Parameters
    ----------
    run_dir : str or Path
    data : str or Path, or sequence of these
        A file, a folder or a glob, as in a job, with the columns of the rows.
    out : str or Path
        A new or empty folder outside every run directory.
    target : str, optional
        Attribute that models predict.
    scheduler : str, optional
        As in the job.
    progress : callable, optional
        As in `dpscale.run`.
    sdmetrics : bool
        Add the quality and diagnostic reports of SDMetrics.

    Returns
    -------
    Path

    Raises
    ------
    JobError, DataError
        For runs or data that cannot be compared, or a missing package, before anything is counted.
    """
    if sdmetrics:
        check_sdmetrics()  # its extra has scikit-learn too
    check_learner()
    run = open_part(run_dir)
    rows = open_rows(run)
    names = names_of(rows)
    paths = [str(one) for one in (data if isinstance(data, list | tuple) else [data])]
    records = discreetly("comparing", open_data, run, paths, [*names, *(number.name for number in rows.domain.numbers)])
    predicted = target_of([run.domain[name] for name in names], target)

    with output_folder(out, run.path) as folder:
        engine = resolve(scheduler=scheduler or run.job.engine.scheduler, progress=shown(progress))
        try:
            contents = discreetly("comparing", _contents, run, engine, records, rows, predicted, sdmetrics)
        finally:
            engine.close()
        write(folder, contents)

    return folder / PAGE


def _contents(
    run: TablePart, engine: Engine, data: ComparedTable, rows: ComparedTable, target: Target, sdmetrics: bool
) -> dict[str, str]:
    """Return the files by name.

    The sets are chosen by the names of attributes and the release, never by records.
    """
    sets = choose_sets(rows.domain, names_of(rows), run.manifest["release"])
    all_sets = [one for degree in sets.values() for one in degree.sets]
    distances = score_all(engine, data, rows, all_sets, run.job.engine.bytes, run.manifest["release"])
    marginals = summarise_by_degree(distances, sets)
    dependence = summarise_dependence(
        [(distance.attributes, *distance.dependence) for distance in distances if len(distance.attributes) == 2]
    )
    names, memory = names_of(rows), run.job.engine.bytes
    chosen = choose_number_sets(run.workload, rows, names, memory)
    numbers = compare_numbers(engine, chosen, data, rows, names, run.manifest["release"])
    results, curves = _evaluate_models(run, engine, data, rows, target, sdmetrics)
    for side in (data, rows):
        side.check_unchanged()
    content = {**_describe(run, data, rows), "marginals": marginals, "dependence": dependence, **results}
    if numbers:
        content["numbers"] = numbers
    drawn = plots(marginals, dependence, curves) | {"number_plot": number_plot(numbers)}
    page = render({"c": content, "job": run.job, "verdicts": verdicts(content), **drawn}, __package__, PAGE)

    return {PAGE: page, FIGURES: json.dumps(_finite(content), indent=1, ensure_ascii=False) + "\n"}


AS_NEAR, NEARLY, FAR = 1.0, 1.5, 3.0  # times the distance of halves of the data
HARDLY, SOMETIMES = 0.55, 0.65  # AUC of distinguishing rows from data
AS_GOOD = 0.05  # of what a model of the data knows beyond chance


def verdicts(content: Content) -> list[dict[str, str]]:
    """Return for each measure its value for the rows, that for halves of the data or another scale, and words.

    Each entry has the `measure`, its value for the `rows`, the value to compare it with (`beside`), and `words`.

    Parameters
    ----------
    content : dict
        Content of `compare.json`.
    """
    dependence, auc, target = content["dependence"], content["propensity"], content["target"]
    # measures with a scale from the data: the distance of two halves
    pairs = [(f"counts over {degree} {'attribute' if degree == '1' else 'attributes'}", one["mean"], one["halves"])
             for degree, one in content["marginals"].items() if one["sets"]]  # fmt: skip
    pairs += (
        [("dependence of pairs", dependence["mean_difference"], dependence["halves"])] if dependence["pairs"] else []
    )
    for name, one in content.get("numbers", {}).items():
        for measure in ("sums", "means"):
            # the mean over the sets, NaN if there are none
            both = [float(np.nanmean([own[key] for own in one["sets"]] or [math.nan]))
                    for key in (measure, f"{measure}_halves")]  # fmt: skip
            pairs.append((f"{measure} of {name}", both[0], both[1]))

    found = [{"measure": measure, "rows": figure(rows), "beside": figure(halves), "words": against(rows, halves)}
             for measure, rows, halves in pairs]  # fmt: skip
    if auc:
        words = "hardly" if auc["auc"] <= HARDLY else "sometimes" if auc["auc"] <= SOMETIMES else "often"
        found.append({"measure": "AUC of distinguishing rows from data", "rows": f"{auc['auc']:.3f}",
                      "beside": "0.5 by chance", "words": f"a model can {words} tell rows from data"})  # fmt: skip
    if target:
        best, own = target["data"]["auc"], target["rows"]["auc"]
        # an AUC of 0.5 is chance: the share of what data teach beyond it
        lost = (best - own) / max(best - 0.5, 1e-9)
        words = "as good as trained on data" if lost <= AS_GOOD else f"loses {min(lost, 1):.0%} of what data teach"
        found.append({"measure": f"AUC of predicting {target['attribute']}", "rows": f"{own:.3f}",
                      "beside": f"{best:.3f} from data", "words": words})  # fmt: skip
    return found


def against(rows: float, halves: float) -> str:
    """Return in words how far rows are from the data, beside the distance of two halves of the data.

    `times` is the distance of rows in units of the distance between two random halves of the data, which is the
    distance that chance alone causes. NEARLY, AS_NEAR and FAR are limits of it.
    """
    if not (math.isfinite(rows) and math.isfinite(halves)):
        return "not known"
    times = rows / halves if halves > 0 else 0.0 if rows == 0 else math.inf
    if times <= NEARLY:
        return (
            "no farther apart than two halves of the data" if times <= AS_NEAR else "about as far apart as two halves"
        )
    return f"{'far off, ' if times > FAR else ''}{times:.2g} times as far apart as two halves"


def _evaluate_models(
    run: TablePart, engine: Engine, data: ComparedTable, rows: ComparedTable, target: Target, sdmetrics: bool
) -> tuple[Content, Content]:
    """Return the results of models, and of SDMetrics, on samples of both tables, and the curves of each evaluation.

    Samples have at most MOST rows, drawn by the name of the release. `propensity` distinguishes rows from data;
    `target` predicts an attribute, and is None without one. `sampled` has the numbers of rows of both samples.
    """
    names = names_of(rows)
    records, drawn = (sample(engine, side, names, MOST, run.manifest["release"]) for side in (data, rows))
    if not len(records):
        raise DataError("DATA", "no record", "at least one record", "name files with records")

    attributes = [run.domain[name] for name in names]
    evaluations = {
        "propensity": propensity(attributes, records, drawn),
        "target": usefulness(attributes, target, records, drawn) if target else None,
    }
    results = {name: evaluation and evaluation.results for name, evaluation in evaluations.items()}
    if sdmetrics:
        results["sdmetrics"] = sdmetrics_scores(attributes, records, drawn)
    curves = {evaluation.title: evaluation.curves for evaluation in evaluations.values() if evaluation}

    return {**results, "sampled": {"data": len(records), "rows": len(drawn)}}, curves


def _describe(run: TablePart, data: ComparedTable, rows: ComparedTable) -> Content:
    """Return a description of the compared tables and of the report.

    `private` and `differentially_private` state that the report has exact numbers of the data.
    """
    return {
        "private": PRIVATE,
        "differentially_private": False,
        "made": now(),
        "release": run.manifest["release"],
        "run": str(run.path),
        "files": {side.label.lower(): list(side.table.files) for side in (data, rows)},
        "attributes": names_of(rows),
        "versions": {"dpscale": VERSION, "scikit-learn": version("scikit-learn")},
    }


def _finite(content: Any) -> Any:
    """Replace nan and infinity by null, because JSON cannot represent them."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
