"""The synthesize stage: synthetic rows, which cost nothing and can be drawn repeatedly.

It reads no record and no count. The driver fits the sampler once. Then each part of the table is a separate task. Its
bytes depend on the sampler, the release id and the number of the part. With numbers
(`dpscale.runs.stages.row_numbers`) and several parts, they also depend on the counts of all rows: a first pass draws,
stores and counts the rows.

*Rows with given values of some attributes.*
They are drawn in memory and change no file of the rows. A graphical model with the evidence entered is again a
graphical model, whose rows are drawn along its junction tree. Rows of other estimates come from a sampler of whole
tables, which cannot be conditioned: a larger table is drawn, and its rows with the given values are kept (rejection).
Their distribution is that of the sampler given the values.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.arrow import arrow_csv, pa, pq
from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers, Integers32, serial_map
from dpscale.base.settings import checked
from dpscale.domain.number import Number
from dpscale.domain.schema_values import has_day
from dpscale.job.sections import SynthesizeTable
from dpscale.privacy.streams import PublicStream
from dpscale.runs.estimates import (
    TRIAL_PART,
    choose_sampler,
    compare_rows,
    compared_by,
    joint_distribution,
    model_folder,
    open_sampler,
    read_sampler,
)
from dpscale.runs.manifest import disk_errors
from dpscale.runs.preflight import check_formats, check_rows
from dpscale.runs.stages.row_numbers import (
    COUNTS,
    cells_file,
    count_groups,
    describe_numbers,
    limited_rows,
    number_steps,
    read_array,
    row_sums,
    write_array,
    write_targets,
)
from dpscale.runs.stages.row_rules import broken_rows, fit_values, repaired
from dpscale.runs.table import TablePart
from dpscale.storage.files import listed, present, remove, write_whole, writing
from dpscale.synthesis.ancestral import ancestral_sampler
from dpscale.synthesis.decode import column_of, number_column, table_of, type_of, values_inside
from dpscale.synthesis.draw import PairwiseSampler, RowPart, RowSampler, split_rows
from dpscale.synthesis.quality import mean_distances, rows_warning, worst_set
from dpscale.synthesis.text_values import text_column

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

MOST_DRAWN = 1 << 22  # rows of a table of which some are kept
SPARE = 1.25  # rows that are drawn over those that are expected to be needed
LEAST_SHARE = 1e-9  # of the records of a model; below it no record has the values
Evidence = Mapping[str, Sequence[int]]


class RowsWarning(UserWarning):
    """Synthetic rows are farther from the released estimates than `synthesis.quality` allows."""


INDEX = "_rows.json"  # readers of a folder skip names that begin with an underscore
MOST_COUNTED = 1 << 24  # rows times compared sets
COUNTED = 3  # arrays of a part before its sums: counts, rows counted, rows that break a rule
Counts = list[np.ndarray]


def checked_rows(run: TablePart, rows: int) -> SynthesizeTable:
    """Return the settings of a number of synthetic rows after checking that it is possible."""
    before = run.synthesis or SynthesizeTable()
    request = checked(SynthesizeTable, before.model_dump() | {"rows": rows}, "synthesize", "synthetic rows")
    check_rows(request, rows, len(run.domain), run.job.engine.bytes)
    return request


def request_rows(run: TablePart, rows: int) -> None:
    """Request another number of synthetic rows after checking that it is possible."""
    request = checked_rows(run, rows)
    check_formats(run.domain, rows)
    with disk_errors(run.path), run.run.locked():
        run.request_rows(request)


def perform(run: TablePart, engine: Engine) -> None:
    """Fit the sampler, draw every part of the rows in a task, and write the description with the rows' distances.

    A task returns COUNTED arrays and the sums of each number (see `write_part`), which are added over the parts.
    """
    settings, folder, memory = _settings(run), model_folder(run), run.job.engine.bytes
    columns = len(run.domain) + len(run.workload.numbers)
    check_rows(settings, settings.rows, columns, memory)
    name, distances = choose_sampler(run, settings, engine.each("model"))
    _, sampler = open_sampler(str(run.path), str(folder), name)

    rows = settings.rows or limited_rows(run, sampler.total)
    check_rows(settings, rows, columns, memory)
    check_formats(run.domain, rows)
    _clear(run.path / "synthetic")
    files = settings.parts_of(rows, columns)
    parts = split_rows(rows, files)
    targets = write_targets(run, sampler, folder) if run.workload.numbers else ()
    # sums of numbers need the counts of all rows: a first pass counts them
    if targets and len(parts) > 1 and not settings.weights:
        _count_parts(engine, [(str(run.path), str(folder), name, part) for part in parts])

    items = [(str(run.path), str(folder), name, settings, part) for part in parts]
    # counts are summed on the workers, so that no process has those of all parts
    written = engine.reduce(write_part, items, COUNTED + len(targets), "rows")
    counts = engine.map(_same, [(total,) for total in written], "rows")  # arrays of `write_part`, summed over parts

    description = {"rows": rows, "parts": files, "weights": settings.weights, "method": name, "tried": distances,
                   "files": [_file_name(settings, number) for number in range(files)]}  # fmt: skip
    # a check: the sampler must have repaired all rows
    if run.domain.rule_texts:
        broken = int(counts[2][0])
        if broken:
            raise RuntimeError(f"{broken} synthetic rows break a rule of the domain")
        description["rules"] = {"stated": len(run.domain.rule_texts), "broken": broken}
    if targets:
        sums = counts[COUNTED:]
        scale = 1.0 if settings.weights else rows / sampler.total
        description["numbers"] = describe_numbers(run, targets, sums, scale)
    _write_description(run, sampler, description, counts[0], int(counts[1][0]))


def _same(value: Floats) -> Floats:
    return value


def _file_name(settings: SynthesizeTable, number: int) -> str:
    return f"part-{number:05d}.{settings.format}"


def _count_parts(engine: Engine, parts: list[tuple[Any, ...]]) -> None:
    """Draw the rows of all parts, store them for `write_part`, and count them by the groups of numbers."""
    _, folder, *_ = parts[0]
    counts = engine.reduce(count_part, parts, 1, "rows")
    engine.map(write_array, [(Path(folder) / COUNTS, counts[0])], "groups")


def count_part(path: str, folder: str, name: str, part: RowPart) -> list[Integers]:
    """Draw the rows of a part and store their cells; return their counts."""
    run, sampler = open_sampler(path, folder, name)
    rows = drawn_rows(run, sampler, part)
    write_array(cells_file(Path(folder), name, part), rows)
    return [count_groups(Path(folder), rows, sampler)]


def _write_description(
    run: TablePart, sampler: RowSampler, description: dict[str, Any], counts: Floats, counted: int
) -> None:
    """Write the description of the rows and their distance from the released estimates."""
    layout = compared_by(run, sampler)
    comparisons = compare_rows(run, sampler, layout, counts, counted)
    worst = worst_set(comparisons)
    content = description | {
        "total": sampler.total,
        "pairs": {"held": sampler.matched_pairs, "of": comb(len(sampler.names), 2)},
        "compared": {"sets": len(comparisons), "rows": counted},
        "distances": mean_distances(comparisons),
        "worst": worst and {"attributes": list(worst.names), "distance": worst.distance,
                            "standard_errors": worst.standard_errors},
    }  # fmt: skip
    warning = rows_warning(comparisons)
    if warning:
        content["warning"] = warning
        warnings.warn(warning, RowsWarning, stacklevel=2)
    write_whole(run.path / "synthetic" / INDEX, json.dumps(content, indent=1).encode())


def _settings(run: TablePart) -> SynthesizeTable:
    return run.synthesis or SynthesizeTable()


def _clear(folder: Path) -> None:
    """Remove files of earlier rows."""
    for name in listed(folder) if present(folder) else []:
        remove(folder / name)


def write_part(path: str, folder: str, name: str, settings: SynthesizeTable, part: RowPart) -> Counts:
    """Draw a part, of one or several files, and write its files.

    Return its counts over the compared sets, the numbers of rows that were counted and that break a rule, then its sums
    of numbers. `settings` is an argument because a process with an open run may have older settings. The cells of the
    part are stored already if a first pass counted them.
    """
    run, sampler = open_sampler(path, folder, name)
    stored = cells_file(Path(folder), name, part)
    rows = read_array(stored) if present(stored) else drawn_rows(run, sampler, part)
    weights = sampler.weights(rows, part) if settings.weights and isinstance(sampler, PairwiseSampler) else None
    numbers = number_steps(run, Path(folder), sampler, rows, part, weights) if run.workload.numbers else {}

    start, broken = 0, 0  # first row of a file in the part; rows that break a rule
    for file in part.each:
        inside = slice(start, start + file.count)
        stream = PublicStream(run.manifest["release"], "values", file.rows, file.parts, file.number)
        steps = {number: of_part[inside] for number, of_part in numbers.items()}
        texts = format_columns(run, np.arange(file.first, file.first + file.count), run.manifest["release"])
        table = decoded(run, sampler, rows[inside], steps, texts, None if weights is None else weights[inside], stream)
        _write(run.path / "synthetic" / _file_name(settings, file.number), table)
        broken += broken_rows(run, sampler.names, rows[inside], table)
        start += file.count
    sums = row_sums(run, Path(folder), sampler, rows, numbers, weights) if numbers else []
    # the cells of a first pass are no longer needed
    if present(stored):
        remove(stored)
    layout = compared_by(run, sampler)
    # at most MOST_COUNTED rows times sets are counted over all parts
    limit = max(1, MOST_COUNTED // max(1, len(layout.sets)) * part.count // max(1, part.rows))
    counted = rows[:limit]
    counts = layout.count(counted, None if weights is None else weights[:limit])
    return [counts, np.array([len(counted)]), np.array([broken]), *sums]


def drawn_rows(run: TablePart, sampler: RowSampler, part: RowPart, key: str | None = None) -> Integers32:
    """Return the cells of a part's rows; rows that the domain's rules exclude are repaired.

    `key` names the random streams; by default it is the public name of the release.
    """
    key = key or run.manifest["release"]
    return repaired(run, sampler, sampler.rows(part, key), PublicStream(key, "possible", *part.key))


def format_columns(run: TablePart, rows: Integers, key: str) -> dict[str, pa.Array]:
    """Return the columns of texts with a format of the domain, for the rows with the numbers `rows`."""
    return {form.name: text_column(form, rows, format_key(run, key)) for form in run.domain.formats}


def format_key(run: TablePart, key: str | None = None) -> str:
    """Return the public name of the texts of a table's formats; tables have different ones."""
    return f"{key or run.manifest['release']} {run.folder}"


def decoded(
    run: TablePart,
    sampler: RowSampler,
    cells: Integers32,
    numbers: dict[str, Integers],
    texts: dict[str, pa.Array],
    weights: np.ndarray | None,
    stream: PublicStream,
) -> pa.Table:
    """Return rows as a table with the columns, their order and their types of the input.

    Parameters
    ----------
    cells : ndarray, shape (rows, attributes)
    numbers : dict of str to ndarray
        Steps of each number in the rows; -1 for null. They are changed in place if a rule requires it.
    texts : dict of str to pyarrow.Array
        Columns with a format, as drawn.
    weights : ndarray or None
        Weight of each row, which becomes a further column.
    stream : PublicStream
        For values inside cells.
    """
    names, types = sampler.names, run.manifest.get("columns") or {}
    # columns of the input in its order, then the others
    columns = (*names, *numbers, *texts)
    ordered = [name for name in types if name in columns] + [name for name in columns if name not in types]

    values, inside = {}, dict[str, Any]()  # columns of the table; values inside the cells of attributes
    for name in [name for name in ordered if name not in texts]:
        attribute = run.domain[name]
        if not isinstance(attribute, Number):
            same_column = [(number, numbers[number.name]) for number in run.domain.numbers
                           if number.name in numbers and number.column == attribute.column]  # fmt: skip
            wanted = type_of(types.get(name, ""))
            # columns of one input column have the same value
            inside[name] = values_inside(attribute, cells[:, names.index(name)], stream, wanted, same_column)

    fit_values(run, names, cells, numbers, inside, stream)
    for name in ordered:
        if name in texts:
            values[name] = texts[name]
            continue
        wanted, attribute = type_of(types.get(name, "")), run.domain[name]
        if isinstance(attribute, Number):
            values[name] = number_column(attribute, numbers[name], wanted)
        else:
            # times inside a day are drawn at random, unless a rule compares the values
            times = None if name in run.compared else stream
            if times is None and attribute.kind == "date" and not has_day(attribute.format):
                wanted = None  # a text would lose the day
            values[name] = column_of(attribute, cells[:, names.index(name)], inside[name], wanted, times)
    if weights is not None:
        # a column of the input may have this name
        values["weight" if "weight" not in values else "weight_"] = pa.array(weights)
    return table_of(values)


def _write(path: Path, table: pa.Table) -> None:
    """Write rows as CSV or Parquet, by the ending. Parquet files do not contain the Arrow schema."""
    with writing(path, durable=False) as file:
        if path.suffix == ".csv":
            arrow_csv.write_csv(table, file)
        else:
            pq.write_table(table, file, store_schema=False)


def conditional_rows(run: TablePart, rows: int | None, given: Evidence, state: int | None = None) -> pa.Table:
    """Return synthetic rows with given values.

    Parameters
    ----------
    run : TablePart
        Measured run.
    rows : int or None
        Number of rows; None for about the number of records with these values.
    given : mapping of str to sequence of int
        Cells of each attribute whose value is given.
    state : int or None
        Rows of one number and state are the same.

    Returns
    -------
    pyarrow.Table

    Raises
    ------
    JobError
        If the number of rows is invalid.
    PlanError
        If no estimated record has the values, or so few that rows cannot be drawn from these estimates.
    """
    settings = checked_rows(run, rows or 1)
    if run.workload.numbers:
        raise PlanError("sample", f"given values, or a random state, with the number {run.workload.numbers[0]}",
                        "a workload without sums of numbers", "draw rows without them, and select")  # fmt: skip

    with disk_errors(run.path), run.run.locked():
        model = joint_distribution(run)
        if model is not None:
            conditioned = model.given(**given)
            if conditioned.total < LEAST_SHARE * model.total:
                raise _no_record(given)
            sampler: RowSampler = ancestral_sampler(conditioned)
        else:
            sampler = read_sampler(model_folder(run), choose_sampler(run, settings, serial_map)[0])

    key = run.manifest["release"] if state is None else f"{run.manifest['release']} {state}"
    cells = _kept(run, sampler, rows, given, key)
    check_formats(run.domain, len(cells))
    texts = format_columns(run, np.arange(len(cells)), key)
    return decoded(run, sampler, cells, {}, texts, None, PublicStream(key, "values", len(cells), 1, 0))


def _kept(run: TablePart, sampler: RowSampler, rows: int | None, given: Evidence, key: str) -> Integers32:
    """Return cells of rows with the given values, shape (rows, d).

    `given` has the accepted cells of each attribute. Tables of unconditional rows are drawn, each twice as large as the
    one before, until one has enough such rows. The first size follows from the share of matching rows in a trial, with
    SPARE as a margin.
    """
    accepted_cells = {sampler.names.index(name): sorted(set(cells)) for name, cells in given.items()}  # by column

    def matching(count: int) -> Integers32:
        """Draw `count` rows of the whole table and return those with accepted cells in all columns."""
        drawn = drawn_rows(run, sampler, RowPart(count, 1, 0), key)
        matches = np.ones(count, np.bool_)
        for column, accepted in accepted_cells.items():
            matches &= np.isin(drawn[:, column], accepted)
        return drawn[matches]

    share = len(matching(TRIAL_PART.rows)) / TRIAL_PART.rows if given else 1.0  # of the rows that match, by a trial
    wanted = max(1, round(share * sampler.total)) if rows is None else rows
    # a share of 0 in the trial is taken as that of one row
    count = wanted if share == 1 else math.ceil(SPARE * wanted / max(share, 1 / TRIAL_PART.rows))
    while count <= max(MOST_DRAWN, wanted):  # a trial without a match may be followed by some
        checked_rows(run, count)
        matches = matching(count)
        if len(matches) >= wanted:
            return matches[:wanted]
        count *= 2
    raise (
        _no_record(given)
        if not share
        else PlanError(
            "given",
            f"values of {share:.2g} of the rows, for which over {MOST_DRAWN:,} rows would be drawn",
            "values of more rows, or estimates of a graphical model",
            "use mechanism aim-pgm or mst, or fewer values",
        )
    )


def _no_record(given: Evidence) -> PlanError:
    return PlanError("given", f"values of {', '.join(given)} that no estimated record has", "values of some records",
                     "give others, or use mechanism aim-pgm or mst")  # fmt: skip
