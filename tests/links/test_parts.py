"""Links read in parts have the statistics of links read at once, on all shapes and on random databases with faults."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpscale.base.errors import DataError
from dpscale.contributions import links as key_shards
from dpscale.engine.schedulers import Engine, resolve
from dpscale.job import Job
from dpscale.job.neighbours import neighbour_relation
from dpscale.relational.assignment import PairTables
from dpscale.relational.features import Features
from dpscale.runs.links import link_parts, measuring
from dpscale.runs.links.link_data import read_links
from dpscale.runs.links.link_parts import LinkStatistics, PartedLinks, read_parts
from tests.links.shapes import SHAPES, Shape, make_frames, one, pairs, write_shape
from tests.messages import refused

SIZES = (3, 2)  # of the attributes of every table
FEATURES = Features(SIZES, (np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.6])), 0.9)
DIVIDED = {
    "star": SHAPES["star"],
    "chain": SHAPES["chain"],
    "public composite key": SHAPES["public composite key"],
    "public parent of the root": SHAPES["public parent"],
    "public parent below": Shape({"root": "id", "middle": "m", "leaf": "", "place": "p"},
                                 (one("root", "middle", "root_id", 2), one("middle", "leaf", "m_id", 2),
                                  one("place", "leaf", "place_id", name="places")), ("place",)),
    "pairs": SHAPES["pairs"],
    "pairs below": Shape({"root": "id", "middle": "m", "film": "f"},
                         (one("root", "middle", "root_id", 2), pairs("middle", "film", "f", 2)), ("film",)),
}  # fmt: skip


def statistics(links: LinkStatistics, bounded: bool) -> dict[str, Any]:
    """Return all statistics of links that are measured; sums over a parent only of parents with a bound."""
    thresholds, found = np.arange(6), {"count": links.count}
    if bounded:
        found |= {"histogram": links.degree_histogram(), "siblings": links.siblings(PairTables(SIZES))}
    for side in (0, 1):
        found[f"degrees {side}"] = links.by_degree(side, thresholds)
        found[f"rows {side}"] = links.table_rows(side)
        found[f"features {side}"] = links.table_sums(side, FEATURES)
    found |= dict(zip(("u", "v", "both"), links.sums(FEATURES, Features(SIZES, (), None)), strict=True))
    return found | {"entries": links.entry_sums((SIZES, SIZES))}


def differing(job: Job, engine: Engine, parts: int) -> set[str]:
    """Return the statistics of links in parts that differ from those of links that are read at once."""
    found, neighbours = set(), neighbour_relation(job)
    for link in job.link:
        bounded = link.parent in neighbours.rows or bool(link.via)
        whole = statistics(read_links(engine, job, link, neighbours), bounded)
        with closing(read_parts(engine, job, link, neighbours, parts)) as links:
            divided = statistics(links, bounded)
        found |= {f"{link.called}: {name}" for name, own in whole.items()
                  if not np.array_equal(own, divided[name])}  # fmt: skip
    return found


def spoil(frames: dict[str, pd.DataFrame], shape: Shape, seed: int) -> None:
    """Add nulls, dangling keys and repeated rows to the foreign keys and the tables of pairs."""
    rng = np.random.default_rng(seed)
    for link in shape.links:
        name, columns = ("pairs", shape.keys[link["parent"]]) if "via" in link else (link["child"], link["child_key"])
        frame = frames[name]
        for column in [columns] if isinstance(columns, str) else columns:
            if frame[column].dtype.kind in "iu":
                values = frame[column].astype("Int64").copy()
                values[rng.random(len(frame)) < 0.1] = pd.NA
                values[rng.random(len(frame)) < 0.1] = 10**6
                frame[column] = values
        repeated = frame.iloc[rng.integers(0, len(frame), 8)]
        if not shape.keys.get(name) or name not in shape.public:
            frames[name] = pd.concat([frame, repeated], ignore_index=True)


def make_job(folder: Path, shape: Shape, seed: int, faults: bool) -> Job:
    frames = make_frames(shape, dict.fromkeys(shape.keys, 40), seed)
    if faults:
        spoil(frames, shape, seed)
        links = tuple({"nulls": "drop", "dangling": "drop", **link} for link in shape.links)
        shape = Shape(shape.keys, links, shape.public)
    return Job.read(write_shape(folder, shape, frames, 1.0, seed + 1))


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("name", DIVIDED)
def test_statistics_of_parts_are_those_of_links_read_at_once(tmp_path: Path, name: str, faults: bool) -> None:
    """Random databases with nulls, dangling keys, repeated rows and parents above their bounds."""
    engine = resolve(scheduler="synchronous")
    for seed in range(3):
        assert not differing(make_job(tmp_path / str(seed), DIVIDED[name], seed, faults), engine, 3 + 4 * seed)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_the_same_statistics_with_small_parts(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links that refer to each other are not divided; all others are."""
    job, engine = make_job(tmp_path, SHAPES[name], 0, False), resolve(scheduler="synchronous")
    neighbours = neighbour_relation(job)
    monkeypatch.setattr(link_parts, "PART_ROWS", 6)
    for link in job.link:
        with closing(measuring.read_link(engine, job, link, neighbours)) as links:
            assert isinstance(links, PartedLinks) != (neighbours.replaces or link.parent == link.child)
            bounded = link.parent in neighbours.rows or bool(link.via)
            whole = statistics(read_links(engine, job, link, neighbours), bounded)
            assert all(np.array_equal(own, whole[key]) for key, own in statistics(links, bounded).items())


def test_planted_division_of_the_links_of_a_parent_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: rows are divided by their position, so that bounds and siblings see some links of a parent."""
    monkeypatch.setattr(key_shards, "part_of", lambda words, parts: (np.arange(len(words)) % parts).astype(np.uint16))
    job = make_job(tmp_path, DIVIDED["star"], 0, True)
    assert {"l: siblings", "l: count"} <= differing(job, resolve(scheduler="synchronous"), 4)


def test_parts_are_the_same_under_all_schedulers(tmp_path: Path) -> None:
    """Digests of links and of rows, for threads and processes."""
    job, digests = make_job(tmp_path, DIVIDED["chain"], 0, True), set()
    for scheduler in ("synchronous", "threads", "processes"):
        with closing(read_parts(resolve(scheduler=scheduler), job, job.link[1], neighbour_relation(job), 5)) as links:
            digests.add(links.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str) -> None:
    """Also if a part refuses its links; the files that processes share are readable by their owner only."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    engine, good = resolve(scheduler=scheduler), make_job(tmp_path / "good", DIVIDED["star"], 0, False)
    links = read_parts(engine, good, good.link[0], neighbour_relation(good), 3)
    for folder, _, files in os.walk(place):
        assert os.stat(folder).st_mode & 0o77 == 0 or folder == str(place)
        assert all(os.stat(Path(folder, file)).st_mode & 0o77 == 0 for file in files if file != ".lock")
    links.close()
    assert not list(place.iterdir())
    bad = make_job(tmp_path / "bad", DIVIDED["star"], 0, True)
    strict = bad.link[0].model_copy(update={"dangling": "reject"})
    with refused(DataError):
        read_parts(engine, bad, strict, neighbour_relation(bad), 3)
    assert not list(place.iterdir())


def test_representations_show_no_data(tmp_path: Path) -> None:
    job = make_job(tmp_path, DIVIDED["pairs"], 0, False)
    with closing(read_parts(resolve(scheduler="synchronous"), job, job.link[0], neighbour_relation(job), 3)) as links:
        assert repr(links) == "PartedLinks(hidden)"
        assert {repr(one) for one in links.parts} == {"StoredPart(hidden)"}
        assert isinstance(links, PartedLinks)
