"""`manifest.json`: identity and progress of a run. A folder with this file is a run directory."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpscale.base.errors import JobError
from dpscale.job import Job
from dpscale.job.sections import SynthesizeTable
from dpscale.storage.files import is_local, read_bytes, write_whole

MANIFEST = "manifest.json"
PACKAGES = ("dpscale", "dask", "distributed", "numpy", "numba", "pyarrow", "cryptography")
VERSION = 2  # version 1 has a file for each measurement and each answered set
DEFAULT_OUTPUTS = {  # output and completion marker of stages whose manifest entry does not record them
    "plan": ("plan", "plan/plan.json"),
    "measure": ("measurements", "measurements"),
    "reconstruct": ("answers", "answers/index.parquet"),
    "report": ("report.html", "report.html"),
}
FIELD_TYPES = {"release": str, "private": bool, "job_sha256": str, "stages": dict}
DRAFTED = "drafted from the data by `dpscale domain sketch`; a person has reviewed it since"
NULLABLE_FIELDS = {"snapshot", "secret", "privacy"}  # null until they exist


def first_manifest(job: Job, digest: str, number: int = 1, reviewed: bool = False) -> dict[str, Any]:
    """Return the manifest of a run without finished stages.

    The release id is random. With a seed it follows from the job and from `number`, the number of the run.
    """
    seed = job.engine.seed
    release = uuid.uuid4().hex if seed is None else f"seed{seed}-{digest[:24]}" + f"-{number}" * (number > 1)
    return {
        "version": VERSION,
        "release": release,
        "private": seed is None,
        "job_sha256": digest,
        "versions": versions(),
        "snapshot": None,
        "secret": None,
        "privacy": None,
        "stages": {},
        **({"where": job.data.where} if job.data.where else {}),
        **({"domain": DRAFTED} if reviewed else {}),
    }


def versions() -> dict[str, str]:
    """Return the installed versions of Python and of the packages that a release depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run; raise JobError if the file is damaged or missing."""
    try:
        content = json.loads(read_bytes(folder / MANIFEST))
    except (FileNotFoundError, ValueError):
        content = None
    if not isinstance(content, dict) or not _is_valid(content):
        raise JobError("run directory", f"{MANIFEST} in {folder} is damaged", "the file as the run wrote it",
                       "restore it, or start a new run")  # fmt: skip
    return content


def check_version(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise JobError if the run has another version of the file layout."""
    if manifest.get("version") != VERSION:
        creator = "an older" if manifest.get("version") == 1 else "another"
        raise JobError("run directory", f"{folder} was created by {creator} version of dpscale",
                       "a run of this version",
                       "read the files in answers/, which remain valid, or open the run with the version that its "
                       "manifest.json names")  # fmt: skip


def parse_row_settings(folder: Path, content: Any) -> SynthesizeTable:
    """Return the settings of synthetic rows requested after the run was created; raise JobError if they are invalid."""
    try:
        return SynthesizeTable.model_validate(content)
    except ValidationError:
        raise JobError("run directory", f"synthesize in {MANIFEST} in {folder} is damaged",
                       "the settings of [synthesize], which `dpscale job schema` lists",
                       "fix it in the file, or remove it: rows cost no budget") from None  # fmt: skip


def stage_output(stage: str, entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the output of a stage from its manifest entry: the hashed folder or file, and the path that must exist."""
    folder, leaves = DEFAULT_OUTPUTS.get(stage, (stage, stage))
    return str(entry.get("folder", folder)), str(entry.get("leaves", leaves))


def _is_valid(content: dict[str, Any]) -> bool:
    if not (
        content.keys() >= NULLABLE_FIELDS
        and all(isinstance(content.get(name), kind) for name, kind in FIELD_TYPES.items())
    ):
        return False
    return all(isinstance(stage, dict) and isinstance(stage.get("state"), str) for stage in content["stages"].values())


class ManifestCache:
    """Manifest in memory, written through, and read again if another process replaced the file.

    A file on a disk is identified by inode, size and time. A file in an object store is read each time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._text = ""
        self._signature_read: tuple[int, int, int] | None = None

    def read(self) -> dict[str, Any]:
        """Return a copy of the manifest."""
        sign = self._signature()
        if sign is None or sign != self._signature_read:
            self._text, self._signature_read = json.dumps(read_manifest(self.folder)), sign
        return dict(json.loads(self._text))

    def forget(self) -> None:
        """Read the file next time; a shared disk may report an outdated signature for a while."""
        self._signature_read = None

    def write(self, manifest: dict[str, Any]) -> None:
        """Write the manifest atomically and cache it."""
        text = json.dumps(manifest, indent=2)
        write_whole(self.folder / MANIFEST, text.encode())
        self._text, self._signature_read = text, self._signature()

    def _signature(self) -> tuple[int, int, int] | None:
        path = self.folder / MANIFEST
        if not is_local(path):
            return None
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
