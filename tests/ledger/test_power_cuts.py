"""The ledger against power cuts: what charge() admitted before the lights went out is there when they are back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dpscale.base.errors import DpscaleError
from dpscale.ledger import Ledger
from tests.ledger.disk import Disk, can_trace, traced

CUTS = 200
SCRIPT = """
import os
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost

for opened in range(3):
    with Ledger.open({path!r}) as ledger:
        ledger.set_cap("adult", 3.0 + opened, 1e-9)
        for number in range({charges}):
            name = f"r{{opened}}-{{number}}"
            ledger.charge("adult", name, Cost(gaussian="1/10000"), "ab" * 32)
            os.write(1, (name + " ").encode())
            ledger.commit(name)
"""

pytestmark = pytest.mark.skipif(not can_trace(), reason="no strace here, or none that may look")


def cut(disk: Disk, place: Path, chance: random.Random) -> set[str]:
    """The releases that a ledger holds which lost its power now."""
    after = place / str(chance.getrandbits(60))
    after.mkdir()
    for path, content in disk.after_the_cut(chance).items():
        (after / Path(path).name).write_bytes(content)
    if not (after / "budget.sqlite").exists():
        return set()
    with Ledger.open(after / "budget.sqlite", create=False) as ledger:
        ledger.verify()
        datasets = ledger.summary()["datasets"]
        return {row["release"] for row in datasets.get("adult", {"releases": []})["releases"]}


def lost(place: Path, charges: int, cuts: int, flushes: bool = True) -> int:
    """How many cuts of so many lost an admitted charge, or left no sound ledger."""
    folder = place / "disk"
    folder.mkdir()
    calls = traced(SCRIPT.format(path=str(folder / "budget.sqlite"), charges=charges), place)
    chance = random.Random(15)
    begun = next(number for number, (name, _) in enumerate(calls) if name == "link")  # the ledger gets its name
    moments = set(chance.sample(range(begun - 50, len(calls)), min(cuts, len(calls) - begun)))
    disk, admitted, faults = Disk(str(folder), flushes), set[str](), 0
    for moment, said in enumerate(disk.replay(calls)):
        admitted |= set(said.decode().split())
        if moment in moments:
            try:
                faults += not admitted <= cut(disk, place, chance)
            except DpscaleError:
                faults += bool(admitted)
    assert len(admitted) == 3 * charges
    return faults


def test_no_admitted_charge_is_lost_when_the_power_is_cut(tmp_path: Path) -> None:
    assert lost(tmp_path, charges=12, cuts=CUTS) == 0


@pytest.mark.slow
def test_nor_through_checkpoints_of_a_long_history(tmp_path: Path) -> None:
    """A write-ahead log of a thousand pages is written back while charges go on."""
    assert lost(tmp_path, charges=150, cuts=5 * CUTS) == 0


def test_on_a_disk_that_does_not_flush_charges_are_lost(tmp_path: Path) -> None:
    """The planted fault: the simulation sees what an ignored flush costs."""
    assert lost(tmp_path, charges=4, cuts=CUTS, flushes=False) > CUTS / 20
