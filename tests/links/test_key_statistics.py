"""`dpscale check tables` for every shape of links, against pandas and against the links that a run reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpscale.engine.schedulers import resolve
from dpscale.evaluation.inputs import check_keys
from dpscale.job import Job
from dpscale.job.neighbours import neighbour_relation
from dpscale.job.sections import LinkSection
from dpscale.runs.links.link_data import read_links
from tests.links.shapes import SHAPES, Frames, Shape, make_frames, most_children, write_shape

ENGINE = resolve(scheduler="synchronous")


def plant_faults(frames: Frames, shape: Shape) -> Frames:
    """Return the tables with null and dangling foreign keys, repeated pairs, and links of a row to itself."""
    found = dict(frames)
    for link in shape.links:
        name = "pairs" if "via" in link else link["child"]
        columns = link["child_key"] if isinstance(link["child_key"], list) else [link["child_key"]]
        table, last = found[name].copy(), columns[-1]
        table[last] = table[last].astype("Int64")
        table.loc[table.index[:2], last] = pd.NA
        table.loc[table.index[2:5], last] = 999
        if link["parent"] == link["child"]:
            table.loc[table.index[5:8], last] = table["id"].iloc[5:8]
        if "via" in link:
            table = pd.concat([table, table.iloc[4:12], table.iloc[8:10]], ignore_index=True)
        found[name] = table
    return found


def expected_statistics(job: Job, link: LinkSection, frames: Frames) -> dict[str, Any]:
    """Compute the statistics of a link from the tables."""
    table, (first, second) = frames[link.child if link.via is None else link.called], job.ends(link)
    ends = [(first, link.parent), *([(second, link.child)] if link.via else [])]
    whole = table.dropna(subset=[column for columns, _ in ends for column in columns])
    there = pd.Series(True, index=whole.index)
    for columns, name in ends:
        keys = set(frames[name][list(job.key(name))].itertuples(index=False, name=None))
        there &= np.array([row in keys for row in whole[list(columns)].itertuples(index=False, name=None)], np.bool_)
    found, own = whole[there], second if link.via else job.key(link.child)
    loops = found[first[0]] == found[own[0]] if link.loops is False else pd.Series(False, index=found.index)
    links = found[~loops]
    distinct = links.drop_duplicates([*first, *second]) if link.via else links
    degrees = {}
    for side, (columns, name) in zip(("parent", "child"), ends, strict=False):
        each = distinct.groupby(list(columns)).size()
        keys = frames[name][list(job.key(name))].dropna().drop_duplicates()
        degrees[side] = np.sort(np.append(each, np.zeros(len(keys) - len(each), np.int64)))
    bounded = [] if most_children(job, link) is None or (link.kind == "one-to-one" and job.tables[link.parent].public) \
        else list(degrees.values()) if link.protects == "both" else [degrees["parent"]]  # fmt: skip
    over = np.concatenate([np.maximum(each - link.bound, 0) for each in bounded]) if bounded else np.zeros(0)
    spread = {side: (int((each == 0).sum()), each.mean(), each.max()) for side, each in degrees.items()}
    return {
        "rows": len(table), "null_ends": len(table) - len(whole), "dangling": int((~there).sum()),
        "loops": int(loops.sum()), "repeated": len(links) - len(distinct), "links": len(distinct),
        "links_beyond": int(over.sum()), "rows_beyond": int((over > 0).sum()), "degrees": spread,
    }  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_statistics_equal_pandas(tmp_path: Path, name: str) -> None:
    frames = plant_faults(make_frames(SHAPES[name], {}, 5), SHAPES[name])
    job = Job.read(write_shape(tmp_path, SHAPES[name], frames, 1.0))
    checked = check_keys(job, ENGINE)
    assert {one["name"]: one["rows"] for one in checked["tables"]} == {
        table: len(frames[table]) for table in job.tables
    }
    for link, found in zip(job.foreign_keys, checked["links"], strict=True):
        expected = expected_statistics(job, link, frames)
        degrees = {side: (one["none"], one["mean"], one["max"]) for side, one in found["degrees"].items()}
        assert {**{key: found[key] for key in expected}, "degrees": degrees} == expected
        assert min(found["null_ends"], found["dangling"]) > 0


@pytest.mark.parametrize("name", ["pairs", "pairs within a table", "star", "self link", "pairs with composite key"])
def test_statistics_equal_links_of_a_run(tmp_path: Path, name: str) -> None:
    """Of repeated pairs one is a link, and only links beyond the bound are cut."""
    shape = SHAPES[name]
    links = tuple(
        {"dangling": "drop"} | link | ({} if link.get("nulls") else {"nulls": "drop"}) for link in shape.links
    )
    frames = plant_faults(make_frames(shape, {"root": 9}, 5), shape)
    job = Job.read(write_shape(tmp_path, Shape(shape.keys, links, shape.public), frames, 1.0))
    for link, found in zip(job.link, check_keys(job, ENGINE)["links"], strict=True):
        rows = read_links(ENGINE, job, link, neighbour_relation(job)).rows
        assert len(rows) == found["links"] - (found["links_beyond"] if found["beyond_is"] == "cut" else 0)


def test_repeated_pairs_are_not_beyond_the_bound(tmp_path: Path) -> None:
    """The planted fault: the same 3 films of one person, 10 times."""
    shape = SHAPES["pairs"]
    frames = make_frames(shape, {}, 5)
    frames["pairs"] = pd.concat([pd.DataFrame({"id": frames["root"].id[0], "f": frames["film"].f[:3]})] * 10)
    [found] = check_keys(Job.read(write_shape(tmp_path, shape, frames, 1.0)), ENGINE)["links"]
    assert (found["links_beyond"], found["repeated"], found["links"]) == (0, 27, 3)
