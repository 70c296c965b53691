"""Checks of a run whose processes were killed: one charge, one draw, same answers, nothing left over.

Each check returns sentences about violations. `Watcher` observes the run while it works; the other checks read the
finished run. The tests plant a violation for each check.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from dpscale.runs.opening import open_run
from dpscale.runs.stages.runner import run_stages
from dpscale.storage.files import is_partial
from dpscale.storage.lock import free
from tests.audit.composition import audit_run

POLL_SECONDS = 0.005
SECRET, DESTROYED = "secret.key", bytes(32)
POST_PROCESSING = ("reconstruct", "report")
ACCURACY = Fraction(1, 10**6)  # largest relative part of the budget that rounding of a plan leaves over


@dataclass(frozen=True)
class Ledger:
    """Rows of a ledger: releases with cost and state, and decisions with their digests."""

    releases: tuple[tuple[str, str, str], ...]
    rounds: tuple[tuple[str, int, str], ...]

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read a ledger; one that does not exist or has no tables yet is empty.

        Raises sqlite3.OperationalError while another process, which may be suspended, locks the file.
        """
        if not path.exists():
            return cls((), ())
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'rounds'").fetchall():
                return cls((), ())
            releases = db.execute("SELECT release, cost, state FROM releases").fetchall()
            return cls(tuple(releases), tuple(db.execute("SELECT release, round, digest FROM rounds").fetchall()))


class Watcher:
    """Observer of the values, decisions and noise key of a run, which must never change once they are visible.

    Attributes
    ----------
    faults : list of str
    copies : int
        Number of audits of the state between two steps of the run.
    unread : int
        Number of audits during which another process locked the ledger.
    """

    def __init__(self, run: Path, ledger: Path) -> None:
        self.run, self.ledger, self.faults, self.copies, self.unread = run, ledger, list[str](), 0, 0
        self._stamps, self._contents = dict[str, tuple[int, ...]](), dict[str, str]()
        self._secret, self._releases, self._rounds = b"", dict[str, str](), dict[tuple[str, int], str]()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.look()

    @property
    def files(self) -> int:
        """Number of files of values and decisions that became visible."""
        return len(self._contents)

    def _poll(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self.look()

    def look(self) -> None:
        """Compare all visible files with their first content."""
        with self._lock, suppress(FileNotFoundError):  # the folder does not exist yet
            self._look_at_secret()
            found = {entry.name: entry for entry in os.scandir(self.run / "measurements") if _is_final(entry.name)}
            for name in self._contents.keys() - found.keys():
                self._fault(f"{name} disappeared")
            for name, entry in found.items():
                status = entry.stat()
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                if self._stamps.get(name) != stamp:
                    self._compare(name, hashlib.sha256(Path(entry.path).read_bytes()).hexdigest())
                    self._stamps[name] = stamp

    def _compare(self, name: str, content: str) -> None:
        if self._contents.setdefault(name, content) != content:
            self._fault(f"{name} changed its bytes")

    def _look_at_secret(self) -> None:
        with suppress(FileNotFoundError):
            secret = (self.run / SECRET).read_bytes()
            self._secret = self._secret or secret
            if secret not in (self._secret, DESTROYED, b""):
                self._fault("the noise key was replaced")

    def _fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)

    def audit(self) -> None:
        """Check charges and decisions, if the ledger can be read: they stay, and every visible value has its own."""
        self.look()
        visible = sorted(self._contents)
        try:
            rows = Ledger.read(self.ledger)
        except sqlite3.OperationalError:
            self.unread += 1
            return
        self.copies += 1
        for release, cost, _ in rows.releases:
            if self._releases.setdefault(release, cost) != cost:
                self._fault(f"the cost of release {release} changed")
        for release, number, digest in rows.rounds:
            if self._rounds.setdefault((release, number), digest) != digest:
                self._fault(f"the decision of round {number} changed")
        if lost := (self._releases.keys() - {one[0] for one in rows.releases}):
            self._fault(f"the charges of {', '.join(sorted(lost))} disappeared")
        if len(self._releases) > 1:
            self._fault(f"{len(self._releases)} releases are charged")
        recorded = {number for _, number, _ in rows.rounds}
        for name in visible:
            if not rows.releases:
                self._fault(f"{name} was drawn before its charge")
            number = int(name[:3]) if name.endswith(".parquet") else 0
            if number and number not in recorded:
                self._fault(f"{name} was drawn before its decision was on the ledger")


def _is_final(name: str) -> bool:
    return not name.startswith(".") and name.endswith((".parquet", ".json"))


def check_charge(run: Path, ledger: Path, budget: Fraction) -> list[str]:
    """Return violations of: one charge of the run's release, released, that costs the budget (squared mu)."""
    rows, release = Ledger.read(ledger).releases, json.loads((run / "manifest.json").read_text())["release"]
    if len(rows) != 1:
        return [f"the ledger has {len(rows)} charges"]
    [(charged, text, state)] = rows
    cost = {kind: Fraction(part) for kind, part in json.loads(text).items()}
    paid = cost.pop("gaussian")
    faults = [] if charged == release else ["another release is charged"]
    faults += [] if state == "released" else [f"the charge is {state}"]
    faults += [f"a charge of {kind}" for kind, part in cost.items() if part]
    return faults + ([] if budget * (1 - ACCURACY) < paid <= budget else [f"the charge is {float(paid)}"])


def check_draw(run: Path, ledger: Path, watcher: Watcher) -> list[str]:
    """Return violations that the watcher saw and those that the audit of the finished run finds."""
    before = watcher.copies
    watcher.audit()
    if watcher.copies == before:
        return [*watcher.faults, "the ledger of the finished run cannot be read"]
    found = audit_run(run, ledger)
    unsound = [] if found.sound else [f"the audit finds {float(found.drawn)} drawn of {float(found.paid)}"]
    return [*watcher.faults, *found.faults, *unsound]


def check_answers(run: Path, place: Path) -> list[str]:
    """Return files of answers that differ from those computed again on threads from the same measurements."""
    copy = place / "again"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for folder in ("answers", "model"):
        shutil.rmtree(copy / folder, ignore_errors=True)
    (copy / "report.html").unlink()
    for stage in POST_PROCESSING:
        del manifest["stages"][stage]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    for stage in POST_PROCESSING:
        run_stages(open_run(copy), scheduler="threads", only=stage)
    first, second = _contents(run), _contents(copy)
    shutil.rmtree(copy)
    return [f"{name} differs" for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]


def _contents(run: Path) -> dict[str, str]:
    """Return the hashes of answers, model and report by name."""
    files = [path for folder in ("answers", "model") for path in (run / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in [*files, run / "report.html"] if not is_partial(path)}  # fmt: skip


def check_leftovers(run: Path, scratch: Path, processes: Sequence[int] = ()) -> list[str]:
    """Return what a finished run left: a noise key, partial files, a lock, or scratch files of live workers."""
    manifest = json.loads((run / "manifest.json").read_text())
    faults = [] if manifest["secret"] == "destroyed" else ["the manifest has a noise key"]
    faults += [] if free(run) else ["the run directory is locked"]
    faults += [f"{path.relative_to(run)} is left" for path in sorted(run.rglob("*")) if _is_leftover(path)]
    faults += [f"the draft {path.name} is left" for path in run.parent.glob(".*.new")]
    faults += [f"the scratch file {path.name} is left" for path in sorted(scratch.rglob("dpscale-*"))]
    return faults + [f"a worker holds the scratch file {name}" for name in _unnamed_files(processes, scratch)]


def _is_leftover(path: Path) -> bool:
    return is_partial(path) or path.name.startswith((SECRET.split(".")[0], ".seen-"))


def _unnamed_files(processes: Sequence[int], scratch: Path) -> Iterator[str]:
    """Yield the open files of processes that have no name any more, below the folder of their temporary files."""
    for process in processes:
        with suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    target = os.readlink(link)
                    if target.startswith(str(scratch)) and target.endswith("(deleted)"):
                        yield target
