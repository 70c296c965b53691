"""Links drawn in blocks: every child has a parent within the bound, and their statistics are those of links at once."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import dpscale as dp
from dpscale.runs.links import link_parts, link_sampling, link_sides
from tests.links.shapes import SHAPES, assert_consistent, make_frames, one, write_shape
from tests.links.small import make_job, write_job
from tests.running import linked

PERSONS, BOUND = 1200, 6


def make_frames_of_orders() -> dict[str, pd.DataFrame]:
    """Return persons with orders; months and numbers of orders depend on age, and siblings have one month."""
    rng = np.random.default_rng(0)
    age, sex = rng.integers(0, 4, PERSONS), np.where(rng.random(PERSONS) < 0.5, "F", "M")
    persons = pd.DataFrame({"id": [f"p{i}" for i in range(PERSONS)], "age": age, "sex": sex})
    buyers = np.repeat(np.arange(PERSONS), np.minimum(1 + rng.poisson(1.5 * age / 2), BOUND))
    month = np.where(rng.random(PERSONS) < 0.7, age % 3, rng.integers(0, 3, PERSONS))[buyers]
    orders = pd.DataFrame({"person": [f"p{i}" for i in buyers], "month": month})
    orders["amount"] = 20.0 * rng.random(len(buyers))
    return {"persons": persons, "orders": orders}


def make_changes(**engine: Any) -> dict[str, Any]:
    job = make_job("planned")
    return {"tables": {name: job["tables"][name] for name in ("persons", "orders")}, "link": job["link"][:1],
            "privacy": {"epsilon": 20.0, "delta": 1e-6, "dataset": "shop", "allow_weak_privacy": True},
            "budget": {"method": "planned"},
            "engine": {"scheduler": "synchronous", "seed": 7, **engine}}  # fmt: skip


@pytest.fixture(name="small_blocks")
def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (link_sampling, link_sides):
        monkeypatch.setattr(module, "BLOCK_ROWS", 400)
    monkeypatch.setattr(link_parts, "PART_ROWS", 300)


def release(folder: Path, changes: dict[str, Any] | None = None, files: int = 4) -> dict[str, pd.DataFrame]:
    path = write_job(folder, changes or make_changes(), make_frames_of_orders(), synthesize={"types": "own"})
    found = dp.run(path, folder / "run")
    return {name: rows.compute() for name, rows in found.synthetic().items()}


def table_of(frames: dict[str, pd.DataFrame]) -> np.ndarray:
    """Return the shares of pairs of an age and a month over orders."""
    persons, orders = frames["persons"].set_index("id"), frames["orders"]
    age = persons.age.reindex(orders.person).to_numpy().astype(int)
    return np.histogram2d(age, orders.month.astype(int), bins=(4, 3), range=((0, 4), (0, 3)))[0] / len(orders)


def siblings_of(frames: dict[str, pd.DataFrame]) -> float:
    """Return how many pairs of siblings have the same month."""
    orders = frames["orders"]
    counts = orders.groupby(["person", "month"], observed=True).size()
    each = orders.groupby("person").size()
    return float(((counts**2).sum() - len(orders)) / ((each**2).sum() - len(orders)))


def test_blocks_have_the_statistics_of_links_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Bounds, parents, degrees, the association with the parent, and the similarity of siblings, for equal noise."""
    truth, whole = make_frames_of_orders(), release(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "whole")
    request.getfixturevalue("small_blocks")
    blocks = release(tmp_path / "here")
    assert set(blocks["orders"].person) <= set(blocks["persons"].id)
    assert not blocks["orders"].person.isna().any()
    assert blocks["orders"].person.value_counts().max() <= BOUND
    assert not (linked(tmp_path / "here/run").path / "profiles").exists()
    far = [0.5 * np.abs(table_of(one) - table_of(truth)).sum() for one in (whole, blocks)]
    assert far[1] < far[0] + 0.05  # blocks of 300 rows: 0.012 more, standard deviation 0.006
    moved = blocks["orders"].person.sample(frac=1, random_state=0).to_numpy()
    shuffled = blocks | {"orders": blocks["orders"].assign(person=moved)}
    assert 0.5 * np.abs(table_of(shuffled) - table_of(truth)).sum() > far[1] + 0.05  # a planted loss of the link
    degrees = [frames["orders"].person.value_counts().value_counts(normalize=True).sort_index()
               for frames in (whole, blocks)]  # fmt: skip
    assert np.abs(degrees[0].cumsum() - degrees[1].reindex(degrees[0].index).fillna(0).cumsum()).max() < 0.06
    assert siblings_of(blocks) > siblings_of(shuffled) + 0.1


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SHAPES)
def test_all_shapes_are_consistent_in_blocks(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (link_sampling, link_sides):
        monkeypatch.setattr(module, "BLOCK_ROWS", 8)
    monkeypatch.setattr(link_parts, "PART_ROWS", 7)
    path = write_shape(tmp_path, SHAPES[name], make_frames(SHAPES[name], {}, 1), 8.0)
    found = dp.run(path, tmp_path / "run")
    assert_consistent(linked(found.path).job, {own: rows.compute() for own, rows in found.synthetic().items()})


@pytest.mark.usefixtures("small_blocks")
def test_full_parents_have_children_in_every_block(tmp_path: Path) -> None:
    """All parents have as many children as the bound permits."""
    shape = SHAPES["star"]
    frames = make_frames(shape, {"root": 300, "left": 600}, 0)
    frames["left"]["root_id"] = np.repeat(frames["root"]["id"].to_numpy(), 2)
    path = write_shape(tmp_path, shape, frames, 20.0, root={"rows": 300}, left={"rows": 600})
    left = dp.run(path, tmp_path / "run").synthetic()["left"].compute()
    assert (left.root_id.value_counts() == 2).all()
    assert len(left) == 600


@pytest.mark.usefixtures("small_blocks")
def test_children_without_a_parent_and_grouped_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Public parents without a bound are in all blocks; a measured number of children has no parent."""
    shape = SHAPES["public parent"]
    kept = type(shape)(shape.keys, (one("place", "root", "place_id", nulls="keep"),), shape.public)
    frames = make_frames(kept, {"root": 1500}, 0)
    frames["root"]["place_id"] = frames["root"].place_id.astype("Int64").mask(np.arange(1500) % 3 == 0)
    for many in (False, True):
        for module in (link_sampling, link_sampling):
            monkeypatch.setattr(module, "are_many", lambda *_, many=many: many)
        folder = tmp_path / str(many)
        root = dp.run(write_shape(folder, kept, frames, 20.0), folder / "run").synthetic()["root"].compute()
        assert root.place_id.isna().mean() == pytest.approx(1 / 3, abs=0.05)
        assert set(root.place_id.dropna()) <= set(frames["place"].p)


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of the measurements of links and of the released tables."""
    files = sorted([*(folder / "run/synthetic").rglob("*.parquet"), *(folder / "run/links").rglob("*.npy")])
    found = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert len(found) >= 5
    return found


def kill_worker(client: Client) -> None:
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.slow
def test_bytes_are_equal_on_a_cluster_whose_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, threads, and a cluster: a worker is killed with its rows by part, and one before links are drawn."""
    found, place, killed = [], tmp_path / "here", list[str]()
    for scheduler in ("synchronous", "threads"):
        release(place, make_changes(scheduler=scheduler))
        found.append(digests(place))
        place.rename(tmp_path / scheduler)
    path = write_job(place, make_changes(), make_frames_of_orders(), synthesize={"types": "own"})
    sources, divide = link_parts._Reader.sources, link_sampling._divide_parents
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):

        def read(self: Any) -> list[Any]:
            handles = sources(self)
            kill_worker(client)
            killed.append("reading")
            return handles

        def draw(*arguments: Any) -> None:
            divide(*arguments)
            kill_worker(client)
            killed.append("drawing")

        monkeypatch.setattr(link_parts._Reader, "sources", read)
        monkeypatch.setattr(link_sampling, "_divide_parents", draw)
        dp.run(path, place / "run", client=client)
        found.append(digests(place))
    assert killed == ["reading", "reading", "drawing"]
    assert all(one == found[0] for one in found)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_bytes_are_equal_with_processes(tmp_path: Path) -> None:
    found = []
    for scheduler in ("synchronous", "processes"):
        release(tmp_path / "here", make_changes(scheduler=scheduler))
        found.append(digests(tmp_path / "here"))
        (tmp_path / "here").rename(tmp_path / scheduler)
    assert found[0] == found[1]
