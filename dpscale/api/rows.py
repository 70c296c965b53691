"""Synthetic rows of a release as Dask data frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PairRows:
    """Synthetic links of a table of pairs.

    Parameters
    ----------
    rows : callable
        Returns the links.
    """

    def __init__(self, rows: Callable[[], Any]) -> None:
        self._rows = rows

    def synthetic(self) -> Any:
        """Return the links, a row with two keys each.

        Returns
        -------
        dask.dataframe.DataFrame
        """
        return self._rows()


def read_rows(files: list[str]) -> Any:
    """Return the rows in some files as a Dask data frame."""
    import dask.dataframe as dd

    return dd.read_csv(files) if files[0].endswith(".csv") else dd.read_parquet(files)
