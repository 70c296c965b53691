"""What holds of released links, looked at in the files as they are: ends that are there, bounds, degrees."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.multitable.job import LinkSection
from dpscale.multitable.measuring import SIDES, piece_of, records_of
from dpscale.multitable.run import DatabaseRun
from dpscale.multitable.writing import INDEX
from dpscale.storage.files import present, read_bytes, read_text


@dataclass(frozen=True, eq=False)
class Released:
    """A link of a run that is synthesised."""

    run: DatabaseRun
    link: LinkSection

    @cached_property
    def parents(self) -> Any:
        """Of every link the parent's key; null where a child has none."""
        table = self.link.child if self.link.via is None else self.link.called
        return column(self.run, table, self.run.job.ends(self.link)[0])

    @cached_property
    def children(self) -> Any:
        return column(self.run, self.link.called, self.run.job.ends(self.link)[1])

    @cached_property
    def ends(self) -> list[tuple[Any, Any]]:
        """The keys at an end and those of the rows there: of the parents, and by a table of pairs of the children."""
        job, link = self.run.job, self.link
        found = [(self.parents, column(self.run, link.parent, job.key(link.parent)))]
        return found + (
            [] if link.via is None else [(self.children, column(self.run, link.child, job.key(link.child)))]
        )

    @cached_property
    def degrees(self) -> list[Floats]:
        """Of every row its links, side by side as `ends`."""
        return [end.value_counts().reindex(keys).fillna(0).to_numpy() for end, keys in self.ends]

    @property
    def whole(self) -> bool:
        """Every end is a row's that is there, no pair is there twice, and bounds are kept."""
        there = all(end[end.notna()].isin(keys).all() for end, keys in self.ends)
        bounds = [most for most in self.bounds if most is not None]
        kept = all(float(own.max(initial=0)) <= most for own, most in zip(self.degrees, bounds, strict=False))
        return bool(there and kept and (self.link.via is None or not _twice(self.parents, self.children)))

    @property
    def bounds(self) -> list[int | None]:
        """The most links of a row, of each side that has a bound."""
        whom, link = self.run.whom, self.link
        bounded = whom.replaces or link.parent in whom.rows or link.kind == "one-to-one"
        return [link.bound if bounded else None, link.bound if whom.replaces else None]

    def measured(self) -> list[tuple[NDArray[np.int64], Floats]]:
        """Of each side that has them: up to which degree, and the noisy share of rows with no more; [] for none."""
        noisy = records_of(self.run, self.link).measured("degrees")
        if noisy is None:
            return []
        places = piece_of(self.run, self.link).places
        parts = np.split(noisy, np.cumsum([len(one) for one in places])[:-1])
        rows = [max(len(own), 1) for own in self.degrees]
        return [(at, part / count) for at, part, count in zip(places, parts, rows, strict=False)]

    @property
    def expected(self) -> float | None:
        """The expected error of cross marginals over that of random links, by the plan's priors; None as published."""
        path = records_of(self.run, self.link).folder / "shares.json"
        if not present(path):
            return None
        told = json.loads(read_bytes(path))
        return told["expected"] / told["random"] if told.get("random") else None

    def told(self) -> dict[str, Any]:
        """As the report and `_links.json` have it."""
        sides = {side: {"rows": len(own), "mean": float(own.sum() / max(len(own), 1)), "most": int(own.max(initial=0))}
                 for side, own in zip(SIDES, self.degrees, strict=False)}  # fmt: skip
        return {"name": self.link.called, "kind": self.link.kind, "parent": self.link.parent, "child": self.link.child,
                "links": int(self.parents.notna().sum()), "without": int(self.parents.isna().sum()), "degrees": sides,
                "bound": self.bounds[0], "whole": self.whole, "expected": self.expected,
                "counts": self.link.counts or []}  # fmt: skip


def files_of(run: DatabaseRun, name: str) -> list[Path]:
    told = json.loads(read_text(run.path / "synthetic" / INDEX))
    return [run.path / "synthetic" / file for file in told[name]]


def column(run: DatabaseRun, name: str, columns: tuple[str, ...]) -> Any:
    """A key as a pandas Series; one of several columns as texts."""
    import pandas as pd
    import pyarrow.parquet as pq

    frame = pd.concat([pq.read_table(file, columns=list(columns)).to_pandas() for file in files_of(run, name)])
    if len(columns) == 1:
        return frame[columns[0]].reset_index(drop=True)
    return frame.astype(str).agg("\0".join, axis=1).reset_index(drop=True)


def _twice(one: Any, other: Any) -> bool:
    import pandas as pd

    return bool(pd.DataFrame({"one": one, "other": other}).duplicated().any())
