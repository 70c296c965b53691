"""Simulation of power cuts: the system calls of a process, recorded by strace, are replayed up to any moment.

Flushed data survive. Of later writes, each sector of 512 bytes, each truncation and each directory change may be
present or not, as POSIX allows. The simulation shares no code with the ledger.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
TRACED = "openat,write,pwrite64,ftruncate,fsync,fdatasync,link,linkat,unlink,unlinkat,rename,renameat,renameat2"
CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)\) += +(-?\d+)")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
HANDLE = re.compile(r"^(\d+)<([^>]*)>")
Call = tuple[str, str]  # its name and its arguments


def trace_calls(script: str, place: Path) -> list[Call]:
    """Return the successful system calls of a Python script run under strace, in order."""
    log = place / "calls"
    command = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={TRACED}", "-o", str(log)]
    subprocess.run([*command, sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    found = [CALL.match(line) for line in log.read_text().splitlines()]
    return [(one[1], one[2]) for one in found if one and int(one[3]) >= 0]


def can_trace() -> bool:
    """Return whether strace is installed and may trace a process."""
    tried = shutil.which("strace") and subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True)
    return bool(tried) and tried.returncode == 0  # type: ignore[union-attr]


def string_arguments(arguments: str) -> list[bytes]:
    return [_bytes(text) for text in STRING.findall(arguments)]


def decode_handles(arguments: str) -> str:
    """Decode the paths of file handles, which strace writes in hexadecimal."""
    return re.sub(r"<((?:\\x[0-9a-f]{2})*)>", lambda one: f"<{os.fsdecode(_bytes(one[1]))}>", arguments)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass
class File:
    flushed: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data); None: cut to that length


@dataclass
class Disk:
    """The files in a directory; `flushes=False` is the planted fault of a disk that ignores flushes."""

    folder: str
    flushes: bool = True
    names: dict[str, File] = field(default_factory=dict)
    pending: list[tuple[str, File | None]] = field(default_factory=list)  # since the folder was flushed

    def replay(self, calls: list[Call]) -> Iterator[bytes]:
        """Replay the calls, and yield the output of the process after each call."""
        for name, arguments in calls:
            handle = HANDLE.match(decode_handles(arguments))
            output = string_arguments(arguments)[0] if name == "write" and handle and handle[1] == "1" else b""
            if handle and handle[2].startswith(self.folder):
                self._on_file(name, arguments, handle[2])
            elif any(one.startswith(os.fsencode(self.folder)) for one in string_arguments(arguments)):
                self._on_name(name, arguments)
            yield output

    def _on_file(self, name: str, arguments: str, path: str) -> None:
        if path == self.folder or os.path.isdir(path):
            if self.flushes and name in ("fsync", "fdatasync"):
                self.pending = []
                self.flushed_names = dict(self.names)
            return
        file = self.names.get(path)
        if file is None:
            return
        numbers = [int(one) for one in re.findall(r", (\d+)(?=,|$)", STRING.sub("", arguments))]
        if name == "pwrite64":
            file.pending.append((numbers[-1], string_arguments(arguments)[0]))
        elif name == "ftruncate":
            file.pending.append((numbers[-1], None))
        elif name in ("fsync", "fdatasync") and self.flushes:
            for change in file.pending:
                apply(file.flushed, *change)
            file.pending = []

    def _on_name(self, name: str, arguments: str) -> None:
        paths = [os.fsdecode(one) for one in string_arguments(arguments)]
        if name == "openat" and "O_CREAT" in arguments and paths[0] not in self.names:
            self._name(paths[0], File())
        elif name in ("link", "linkat"):
            self._name(paths[1], self.names[paths[0]])
        elif name in ("unlink", "unlinkat"):
            self._name(paths[0], None)

    def _name(self, path: str, file: File | None) -> None:
        self.names.pop(path, None)
        if file is not None:
            self.names[path] = file
        self.pending.append((path, file))

    flushed_names: dict[str, File] = field(default_factory=dict)  # names as of the folder's last flush

    def content_after_power_cut(self, chance: random.Random) -> dict[str, bytes]:
        """Return a possible content of each file after the power cut."""
        names = dict(self.flushed_names)
        for path, file in self.pending:
            if chance.random() < 0.5:
                names.pop(path, None)
                if file is not None:
                    names[path] = file
        return {path: self._partial_content(file, chance) for path, file in names.items()}

    @staticmethod
    def _partial_content(file: File, chance: random.Random) -> bytes:
        content = bytearray(file.flushed)
        share = chance.choice([0.0, 0.5, 0.9, 1.0])
        for offset, data in file.pending:
            if data is None:
                if chance.random() < share:
                    apply(content, offset, None)
                continue
            for start in range(0, len(data), SECTOR):
                if chance.random() < share:
                    apply(content, offset + start, data[start : start + SECTOR])
        return bytes(content)


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(max(0, offset - len(content))))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data
