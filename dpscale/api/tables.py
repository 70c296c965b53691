"""Parts of a release of several tables: the join that answers a query, the share of its rows that is cut, and pairs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.statistics import Estimate
from dpscale.answers.unit_counts import CUT_JOIN, excess_of, share_beyond
from dpscale.base.arrow import arrow_csv, is_text, pa
from dpscale.base.display import nearest
from dpscale.base.errors import PlanError
from dpscale.storage.objects import opening

if TYPE_CHECKING:
    from dask.dataframe import DataFrame as DaskFrame
    from pandas import DataFrame


def named_attributes(*names: str | Sequence[str] | None) -> list[str]:
    """Return names that are given as texts, lists or None in one list without repetitions."""
    lists: Iterable[Sequence[str]] = ([one] if isinstance(one, str) else one or () for one in names)
    return list(dict.fromkeys(name for own in lists for name in own))


def chosen_join(joins: Mapping[str, Any], names: Sequence[str], number: bool = False) -> str:
    """Return the name of the join that answers queries over some attributes.

    Parameters
    ----------
    joins : mapping of str to Run
        Runs of the joins by name.
    names : sequence of str
    number : bool
        Whether the query is a sum or a mean, for which numbers are preferred to attributes.

    Raises
    ------
    PlanError
        If no join, or more than one, has a set with these attributes.
    """
    wanted = set(names) - {"records"}
    found = {name: run for name, run in joins.items() if any(wanted <= set(own) for own in run.workload.sets)}
    if not found:
        every = sorted({name for run in joins.values() for name in run.domain.axis_names})
        unknown = next((name for name in names if name not in every), None)
        remedy = "add a part with this set to the workload" if unknown is None else nearest(unknown, every)
        got, takes = f"{', '.join(names) or 'no attribute'} in no join", f"a set of one of the joins {', '.join(joins)}"
        raise PlanError("attributes", got, takes, remedy)
    preferred = [name for name, run in found.items() if bool(wanted & set(run.domain.number_names)) == number]
    chosen = preferred or list(found)
    if len(chosen) > 1:
        raise PlanError("attributes", f"{', '.join(names)} in the joins {', '.join(chosen)}", "attributes of one join",
                        f"name it: release.joins[{chosen[0]!r}]")  # fmt: skip
    return chosen[0]


def cut_share(joins: Mapping[str, Any], name: str, level: float) -> Estimate:
    """Return the share of the rows of a join that its bound cuts; the arguments are those of `Release.cut`.

    Parameters
    ----------
    joins : mapping of str to Release
        Releases of the joins, with that of the rows beyond their bounds.
    name : str
    level : float
    """
    domain = joins[CUT_JOIN].domain if CUT_JOIN in joins else None
    measured = [own.rpartition(".")[0] for own in domain.number_names] if domain else []
    found = excess_of(joins[CUT_JOIN].answered.estimates, name) if name in measured else None
    if found is None:
        raise PlanError("cut", f"{name!r}", f"a join with measured cuts: {', '.join(measured) or 'none'}",
                        nearest(name, measured) if measured else "set joins.NAME.cut in the job")  # fmt: skip
    first = joins[name].domain.names[:1]
    return share_beyond(found, joins[name].answer(first, query=np.ones(joins[name].domain.shape(first))), level)


class PairRows:
    """Synthetic links of a table of pairs.

    Parameters
    ----------
    rows : callable
        Returns the links.
    """

    def __init__(self, rows: Callable[[], DaskFrame]) -> None:
        self._rows = rows

    def synthetic(self) -> DaskFrame:
        """Return the links, a row with two keys each.

        Returns
        -------
        dask.dataframe.DataFrame
        """
        return self._rows()


def read_rows(files: list[str], read_column: Callable[[str, Any], Any] | None = None) -> DaskFrame:
    """Return the rows in some files as a Dask data frame.

    Parameters
    ----------
    files : list of str
    read_column : callable, optional
        Returns the column with a name from its texts in CSV. Parquet files state their types.
    """
    import dask
    import dask.dataframe as dd

    if not files[0].endswith(".csv"):
        return dd.read_parquet(files)
    read = partial(read_csv_rows, read_column=read_column)
    with dask.config.set({"dataframe.convert-string": False}):  # columns have the types of rows in Parquet
        return dd.from_map(read, files, meta=read(files[0]).iloc[:0])


def read_csv_rows(file: str, read_column: Callable[[str, Any], Any] | None = None) -> DataFrame:
    """Return the rows of a CSV file: an empty field without quotes is a null, and every other text is a value."""
    with opening(file) as stream:
        names = next(csv.reader(io.TextIOWrapper(stream, encoding="utf-8", newline="")))
    with opening(file) as stream:
        convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), null_values=[""],
                                           strings_can_be_null=True, quoted_strings_can_be_null=False)  # fmt: skip
        parse = arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1)
        read = arrow_csv.ReadOptions(use_threads=False, block_size=max(1 << 24, stream.seek(0, os.SEEK_END) + 1))
        stream.seek(0)
        table = arrow_csv.read_csv(stream, read, parse, convert).combine_chunks()
    columns = {name: table.column(name).combine_chunks() for name in names}
    if read_column is not None:
        columns = {name: read_column(name, column) for name, column in columns.items()}
    return pa.table(columns).to_pandas(types_mapper=_frame_type)


def _frame_type(kind: pa.DataType) -> object | None:
    """Return the type of a column of a Dask data frame that is read from Parquet; None for that of NumPy."""
    import pandas as pd

    if pa.types.is_date(kind):
        return pd.ArrowDtype(kind)
    return pd.StringDtype("pyarrow") if is_text(kind) else None
