"""The ledger under power cuts: each charge that charge() admitted before the cut is there after it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dpscale.base.errors import DpscaleError
from dpscale.ledger import Ledger
from tests.ledger.disk import Disk, can_trace, trace_calls
from tests.selection import mostly_slow

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


def read_after_power_cut(disk: Disk, place: Path, chance: random.Random) -> set[str]:
    """Return the releases in the ledger after a power cut at this moment."""
    after = place / str(chance.getrandbits(60))
    after.mkdir()
    for path, content in disk.content_after_power_cut(chance).items():
        (after / Path(path).name).write_bytes(content)
    if not (after / "budget.sqlite").exists():
        return set()
    with Ledger.open(after / "budget.sqlite", create=False) as ledger:
        ledger.verify()
        datasets = ledger.summary()["datasets"]
        return {row["release"] for row in datasets.get("adult", {"releases": []})["releases"]}


def count_lost(place: Path, charges: int, cuts: int, flushes: bool = True) -> int:
    """Return the number of cuts after which an admitted charge was lost or the ledger was invalid."""
    folder = place / "disk"
    folder.mkdir()
    calls = trace_calls(SCRIPT.format(path=str(folder / "budget.sqlite"), charges=charges), place)
    chance = random.Random(15)
    begun = next(number for number, (name, _) in enumerate(calls) if name == "link")  # the ledger gets its name
    moments = set(chance.sample(range(begun - 50, len(calls)), min(cuts, len(calls) - begun)))
    disk, admitted, faults = Disk(str(folder), flushes), set[str](), 0
    for moment, output in enumerate(disk.replay(calls)):
        admitted |= set(output.decode().split())
        if moment in moments:
            try:
                faults += not admitted <= read_after_power_cut(disk, place, chance)
            except DpscaleError:
                faults += bool(admitted)
    assert len(admitted) == 3 * charges
    return faults


@pytest.mark.parametrize("cuts", mostly_slow([CUTS // 4, CUTS], {CUTS // 4}))
def test_power_cut_loses_no_admitted_charge(tmp_path: Path, cuts: int) -> None:
    assert count_lost(tmp_path, charges=12, cuts=cuts) == 0


@pytest.mark.slow
def test_power_cut_during_checkpoint_loses_no_admitted_charge(tmp_path: Path) -> None:
    """A write-ahead log of a thousand pages is written back while charges continue."""
    assert count_lost(tmp_path, charges=150, cuts=5 * CUTS) == 0


def test_disk_without_flushes_loses_charges(tmp_path: Path) -> None:
    """Planted fault: the simulation detects ignored flushes."""
    assert count_lost(tmp_path, charges=4, cuts=CUTS // 2, flushes=False) > CUTS / 40
