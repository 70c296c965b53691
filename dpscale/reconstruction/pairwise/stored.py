"""What was learnt, as a file: estimates and tasks read it, and anyone can draw more rows from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.domain.impossible import restored
from dpscale.reconstruction.pairwise.learn import Learnt
from dpscale.reconstruction.pairwise.pairs import Layout, Spread, Wanted
from dpscale.storage.files import reading, writing
from dpscale.workload.residual.groups import Groups

LEARNT = "pairwise.npz"


def write_learnt(path: Path, learnt: Learnt, cells: Spread, total: float) -> None:
    """One file, exact; not flushed, since it can be made again for free."""
    wanted, names = learnt.wanted, learnt.wanted.layout.names
    index: dict[str, Any] = {
        "total": total,
        "names": names,
        "groups": {name: [cells.groups[name].size, *cells.groups[name].starts] for name in names},
    }
    if cells.rules:
        index["rules"] = [rule.to_dict() for rule in cells.rules]
    arrays = {"sizes": wanted.layout.sizes, "used": wanted.layout.used, "ones": wanted.ones, "shares": wanted.shares,
              "known": wanted.known, "theta": learnt.theta, "rows": learnt.rows}  # fmt: skip
    arrays |= {f"one{i}": cells.ones[name] for i, name in enumerate(names)}
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def read_learnt(path: Path) -> tuple[Learnt, Spread, float]:
    """The inverse of `write_learnt`, byte by byte."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index: dict[str, Any] = json.loads(str(arrays["index"]))
        names = tuple(index["names"])
        layout = Layout(names, arrays["sizes"], arrays["used"])
        wanted = Wanted(layout, arrays["ones"], arrays["shares"], arrays["known"])
        learnt = Learnt(wanted, arrays["theta"], arrays["rows"])
        groups = {name: Groups(starts[0], tuple(starts[1:])) for name, starts in index["groups"].items()}
        ones = {name: arrays[f"one{i}"] for i, name in enumerate(names)}
        rules = tuple(restored(told) for told in index.get("rules", ()))
        return learnt, Spread(groups, ones, rules), float(index["total"])
