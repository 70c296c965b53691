"""Answers of a growing table by period."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Self

from dpscale.base.errors import JobError


class GrowingRelease:
    """Answers at the periods of a growing table; `Release` adds those of one table."""

    _run: Any

    def __init__(self, run: Any) -> None:
        self._run = run

    @property
    def _growing(self) -> Any:
        """The only table, which may be a growing table; None of several tables."""
        return self._run.tables.get("data")

    @property
    def path(self) -> Path:
        """Run directory.

        Examples
        --------
        >>> release.path.is_dir()
        True
        """
        found: Path = self._run.path
        return found

    @property
    def horizon(self) -> list[str]:
        """All periods of the horizon of a growing table, released or not; empty for a release of one moment.

        Examples
        --------
        >>> len(growing.horizon)
        6
        """
        return list(getattr(self._growing, "labels", []))

    @property
    def periods(self) -> list[str]:
        """Released periods of a growing table, in order; empty for a release of one moment.

        Examples
        --------
        >>> growing.periods
        ['2026-01', '2026-02']
        """
        return list(getattr(self._growing, "released", []))

    def at(self, period: str | int, kind: str = "period") -> Self:
        """Return the answers at a period of a growing table, as a release of one table.

        Parameters
        ----------
        period : str or int
            Name of a released period, such as "2026-02".
        kind : {"period", "cumulative", "window"}
            Records of the period, of all periods up to it, or of the last `window` periods.

        Returns
        -------
        Release

        Raises
        ------
        JobError
            If the period is not released, the job does not ask for this kind, or the release is one of one moment.

        Examples
        --------
        >>> growing.at("2026-02", kind="cumulative").marginal("a").shape
        (3,)
        """
        if not hasattr(self._growing, "answers_at"):
            raise JobError("period", f"{period!r} for {self.path}, a release of one moment",
                           "the release of a growing table", "leave it out")  # fmt: skip
        if (str(period), kind) not in self._opened:
            self._opened[str(period), kind] = type(self)(self._growing.answers_at(period, kind))
        return self._opened[str(period), kind]

    @cached_property
    def _opened(self) -> dict[tuple[str, str], Self]:
        return {}
