"""Synthetic rows with given values of some attributes, in memory; they cost nothing and change no file of the rows.

A graphical model with the evidence entered is again a graphical model, whose rows are drawn along its junction tree.
Rows of other estimates come from a sampler of whole tables, which cannot be conditioned: a larger table is drawn, and
its rows with the given values are kept (rejection). Their distribution is that of the sampler given the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.errors import PlanError
from dpscale.base.numerics import Integers32, serial_map
from dpscale.privacy.streams import PublicStream
from dpscale.runs.estimates import TRIAL_PART, choose_sampler, joint_distribution, model_folder, read_sampler
from dpscale.runs.manifest import disk_errors
from dpscale.runs.preflight import check_formats
from dpscale.runs.stages.synthesize import checked_rows, decoded, drawn_rows, format_columns
from dpscale.runs.table import TablePart
from dpscale.synthesis.ancestral import ancestral_sampler
from dpscale.synthesis.draw import RowPart, RowSampler

MOST_DRAWN = 1 << 22  # rows of a table of which some are kept
SPARE = 1.25  # rows that are drawn over those that are expected to be needed
LEAST_SHARE = 1e-9  # of the records of a model; below it no record has the values
Evidence = Mapping[str, Sequence[int]]


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

    Tables of unconditional rows are drawn, each twice as large as the one before, until one has enough such rows. The
    first size follows from a trial.

    `given` has the accepted cells of each attribute; SPARE is a margin above the expected number of draws.
    """
    columns = {sampler.names.index(name): sorted(set(cells)) for name, cells in given.items()}

    def matching(count: int) -> Integers32:
        """Draw `count` rows of the whole table and return those with accepted cells in all columns."""
        drawn = drawn_rows(run, sampler, RowPart(count, 1, 0), key)
        matches = np.ones(count, np.bool_)
        for column, accepted in columns.items():
            matches &= np.isin(drawn[:, column], accepted)
        return drawn[matches]

    share = len(matching(TRIAL_PART.rows)) / TRIAL_PART.rows if given else 1.0  # of the rows that match, by a trial
    wanted = max(1, round(share * sampler.total)) if rows is None else rows
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
