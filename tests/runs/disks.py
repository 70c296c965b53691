"""Context managers that mount a small tmpfs, fill a disk or make it read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount of its own")


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextmanager
def fill_disk(disk: Path) -> Iterator[None]:
    """Write a file that takes all free bytes of the disk, and delete it afterwards."""
    state, ballast = os.statvfs(disk), disk / "ballast"
    ballast.write_bytes(bytes(state.f_bavail * state.f_bsize))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def mount_read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
