"""The reconstruct stage: answers of the workload with standard errors and confidence intervals, as Parquet files.

Independent tasks write files of many attribute sets each (`runs.answers`); they read measurements only. The workload
alone determines which sets share a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpscale.answers.ratios import Figures, figures_of
from dpscale.answers.tables import LEVEL
from dpscale.base.arrow import pq
from dpscale.base.numerics import AttributeSet, Floats, one_thread
from dpscale.job.sections import Output
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.reconstruction.model_answers import simultaneous_widths
from dpscale.runs.answers import LARGE_PAGES, AnswerColumns, SetAnswers, statements_of, write_index, write_selections
from dpscale.runs.estimates import estimates_key, estimates_of, open_estimates, prepare_model
from dpscale.runs.table import TablePart
from dpscale.storage.files import writing
from dpscale.workload import WorkloadPart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

HALF_WIDTH_95 = {GAUSSIAN: 1.959963984540054, LAPLACE: math.log(20) / math.sqrt(2)}  # in standard errors
FILES = 64  # approximate number of answer files, so that many workers write them
LEAST_ROWS, MOST_ROWS = 1 << 12, 1 << 21  # rows of a file, up to about 64 MB
GROUP_ROWS = 1 << 17  # rows of a row group of answers
NOISY = ("estimate", "low", "high")  # columns that no codec makes smaller
MOST_QUERIES = 1 << 62  # more queries than a file can have


def perform(run: TablePart, engine: Engine) -> None:
    """Write the answers of the whole workload and their index."""
    engine.check_file_access(run.path)
    prepare_model(run, engine.each("model"))
    estimates, key = estimates_of(run), estimates_key(run)  # cached for tasks in this process
    files = list(_files(run))
    errors = engine.map(write_answers, [(str(run.path), key, number, name, sets) for number, name, sets in files],
                        "reconstruct-set")  # fmt: skip
    write_index(run.path / "answers", run.workload.parts, _index(run, files, errors) | _extrapolated(estimates))
    write_selections(run, estimates, run.job.output.level or LEVEL)


File = tuple[int, str, NDArray[np.int64]]


def _files(run: TablePart) -> Iterator[File]:
    """Yield part number, file name and places in the part for the sets of each file.

    The sets of a file have equally many attributes, and together about `file_rows` rows: a new file begins where the
    rows of the sets before pass a multiple of `file_rows`. A row is a query.
    """
    counts = [_row_counts(run, part) for part in run.workload.parts]
    file_rows = max(min(sum(int(rows.sum()) for rows in counts) / FILES, MOST_ROWS), LEAST_ROWS)
    for number, (part, rows) in enumerate(zip(run.workload.parts, counts, strict=True)):
        degrees = np.array([len(part.shown(names)) for names in part.sets], np.int64)
        for degree in np.unique(degrees[rows > 0]).tolist():
            places = np.flatnonzero((degrees == degree) & (rows > 0))
            rows_before = np.cumsum(rows[places]) - rows[places]
            multiples = (rows_before // file_rows).astype(np.int64)
            starts = np.flatnonzero(np.diff(multiples, prepend=-1))
            folder = AnswerColumns(run.domain, part, degree).folder
            for file, sets in enumerate(np.split(places, starts[1:])):
                yield number, f"{folder}/{number:02d}-{file:05d}.parquet", sets


def _row_counts(run: TablePart, part: WorkloadPart) -> NDArray[np.int64]:
    """Return the number of rows of each set in files; 0 for a set without a file: of weight 0 or too many queries."""
    counts = _queries(part)
    if part.name in statements_of(run):  # the part of a SELECT statement, whose rows are in a file of their own
        return np.zeros_like(counts)
    return np.where((counts <= run.job.output.max_rows) & (np.array(part.weights) != 0), counts, 0)


def _queries(part: WorkloadPart) -> NDArray[np.int64]:
    """Return the number of queries of each set of a part, at most MOST_QUERIES."""
    return np.array([min(count, MOST_QUERIES) for count in part.counts], np.int64)


def _index(run: TablePart, files: Sequence[File], errors: Sequence[Floats]) -> dict[str, Any]:
    """Return the columns of index.parquet, one row for each set of the workload.

    They are the part, number of queries, the number of the file (-1: none), the first row in the file, and the root
    mean square standard error; `names` has the names of the files. A file is (number of the part, name, places of its
    sets in the part), and `errors` has the errors of the sets of each file.
    """
    parts = run.workload.parts
    starts = np.cumsum([0, *(len(part.sets) for part in parts)])  # first row of each part in the index
    queries = np.concatenate([_queries(part) for part in parts])
    file, first = np.full(len(queries), -1, np.int32), np.full(len(queries), -1, np.int64)
    rms = np.full(len(queries), np.nan)
    for file_number, ((number, _, sets), typical_errors) in enumerate(zip(files, errors, strict=True)):
        places = starts[number] + sets
        file[places], rms[places] = file_number, typical_errors
        first[places] = np.cumsum(queries[places]) - queries[places]
    part = np.repeat(np.arange(len(parts)), np.diff(starts))
    return {"part": part, "queries": queries, "file": file, "first": first, "rms_error": rms,
            "names": [name for _, name, _ in files]}  # fmt: skip


def _extrapolated(estimates: Estimates) -> dict[str, Any]:
    """Return the column `extrapolated` of the index: sets that a model answers beyond the row space of measurements.

    The result is empty for least squares, which refuses such sets: its `extrapolates` returns None for every set.
    """
    first_marks = [estimates.extrapolates(names) for part in estimates.workload.parts for names in part.sets[:1]]
    if None in first_marks:
        return {}
    return {"extrapolated": [estimates.extrapolates(names) for part in estimates.workload.parts for names in part.sets]}


def write_answers(path: str, key: str, number: int, name: str, sets: NDArray[np.int64]) -> Floats:
    """Write the answers of some sets of one part into a file.

    Parameters
    ----------
    path : str
        Run directory.
    key : str
        Result of `estimates_key`.
    number : int
        Number of the part.
    name : str
        Name of the file.
    sets : ndarray of int
        Places of the sets in the part.

    Returns
    -------
    ndarray, shape (sets,)
        Root mean square standard error of each set; nan if it has none.
    """
    run, estimates = open_estimates(path, key)
    part, typical_errors = estimates.workload.parts[number], list[float]()
    degree = len(part.shown(part.sets[int(sets[0])]))  # all sets of a file have as many attributes
    columns = AnswerColumns(
        domain=run.domain, part=part, degree=degree, intervals=_intervals(run.job.output, estimates)
    )
    repeated = _dictionary_columns(columns, estimates)
    compression = {name: "none" if name in NOISY else "snappy" for name in columns.schema.names}
    # files are not flushed one by one: answers can be computed again, and the manifest contains their hash
    with (
        one_thread(),  # tasks run in threads; BLAS threads would compete with them
        writing(run.path / "answers" / name, durable=False) as file,
        pq.ParquetWriter(
            file,
            columns.schema,
            compression=compression,
            write_statistics=False,
            use_dictionary=repeated,
            **LARGE_PAGES,
        ) as writer,
    ):
        for group in _groups(run, estimates, part, sets):
            table = columns.table(group)
            writer.write_table(table, row_group_size=table.num_rows)
            typical_errors += [_rms(answers.errors) for _, answers in group]
    return np.array(typical_errors)


def _intervals(output: Output, estimates: Estimates) -> str:
    """Return the description of the intervals for the file's metadata; "" for the default ones.

    Only errors of least squares are exact; with others the probability is described as approximate.
    """
    if output.level is None and not output.joint:
        return ""
    whose = "all of an attribute set's together" if output.joint else "each by itself"
    about = "" if isinstance(estimates, LeastSquaresEstimates) else "about "
    return f"they hold the true count with probability {about}{output.level or LEVEL:g}, {whose}"


def _figures(
    run: TablePart, estimates: Estimates, part: WorkloadPart, names: AttributeSet, answers: Floats, errors: Floats
) -> Figures:
    """Return the figures of the queries of a set, flat: answers, standard errors and both ends of intervals.

    Joint intervals cover all queries of the set together at the level; others each query by itself.
    """
    level = run.job.output.level
    if run.job.output.joint:
        answers, errors = answers.reshape(-1), errors.reshape(-1)
        half = simultaneous_widths(estimates, part, names, errors, level or LEVEL, str(run.manifest["release"]))
        return Figures(estimates=answers, errors=errors, low=answers - half, high=answers + half)
    width = HALF_WIDTH_95[estimates.noise] if level is None else half_width(level, estimates.noise)
    return Figures(*(figure.reshape(-1) for figure in figures_of(part, answers, errors, width)))


def _dictionary_columns(columns: AnswerColumns, estimates: Estimates) -> list[str]:
    """Return the columns whose values repeat, which a dictionary makes smaller: those that do not differ by query.

    Standard errors repeat unless they are simulated, which `estimates.errors` states.
    """
    differing = {"query", *NOISY}
    differing |= {"std_error"} if getattr(estimates, "errors", None) is not None else set()
    return [name for name in columns.schema.names if name not in differing]


def _groups(
    run: TablePart, estimates: Estimates, part: WorkloadPart, sets: NDArray[np.int64]
) -> Iterator[list[SetAnswers]]:
    """Yield the answers of the sets in groups that are written together.

    A group has at most about GROUP_ROWS rows and becomes one row group of the file.
    """
    group, rows = list[SetAnswers](), 0
    requested = [part.sets[place] for place in sets.tolist()]
    answers_and_errors = estimates.iter_part_answers(part.linear, requested)
    for names, (answers, errors) in zip(requested, answers_and_errors, strict=True):
        figures = _figures(run, estimates, part, names, answers, errors)
        if group and rows + figures.estimates.size > GROUP_ROWS:
            yield group
            group, rows = [], 0
        group.append((names, figures))
        rows += figures.estimates.size
    yield group


def _rms(errors: Floats) -> float:
    known = np.isfinite(errors)
    finite = errors if known.all() else errors[known]
    return math.sqrt(float(finite @ finite) / finite.size) if finite.size else math.nan
