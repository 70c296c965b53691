"""Places of the files of a job, relative to the folder of the job file.

The paths of a job are absolute after reading. Its identity has them as the job file states them, so that it stays when
the folder is moved or copied. `places` of a job maps the absolute paths to those relative ones; paths that are stated
as absolute are not in it, except those below the folder of a job file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from dpscale.ledger.location import is_address
from dpscale.ledger.rows import DEFAULT, is_there
from dpscale.storage.objects import is_url, located, real

PATHS = ("path", "domain", "via", "file", "after", "ledger")  # keys whose values are paths
ELSEWHERE = ("domain", "ledger")  # paths outside the identity: of the domain, whose digest is in it, and of the ledger
DIGEST_VERSION = 2  # version 1 has absolute paths
DIGEST_NAMES = {"allow_weak_privacy": "careless"}  # keys of [privacy] whose name in digests is an earlier one
Places = dict[str, str]


class PlacedJob:
    """Base of the jobs: the folder of the job file, and the places of its files from there."""

    def at(self, folder: Path, places: Places, former: Places | None = None) -> Self:
        """Return the job with the folder of its file, the places of its files, and texts of its first digest."""
        job: Self = self.model_copy()  # type: ignore[attr-defined]
        vars(job).update(folder=folder, places=places, former=former or {})
        return job

    @cached_property
    def folder(self) -> Path:
        """Folder from which relative paths of the job start."""
        return Path.cwd()

    @cached_property
    def former(self) -> Places:
        """Texts of the job, mapped to those that version 1 of its digest has."""
        return {}

    @cached_property
    def places(self) -> Places:
        """Absolute paths of the job, mapped to those that it states relative to its folder."""
        return {}


def below(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a job file with paths below its folder relative to it."""

    def relative(key: str, value: str) -> str:
        inside = key in PATHS and os.path.isabs(value) and Path(os.path.normpath(value)).is_relative_to(folder)
        return os.path.relpath(value, folder) if inside else value

    changed: dict[str, Any] = _mapped(content, relative)
    return changed


def places_of(stated: Mapping[str, Any], read: Mapping[str, Any]) -> Places:
    """Return the absolute paths of a job that was read, mapped to the relative ones that it states."""
    pairs = zip(_texts(stated), _texts(read), strict=True)
    found = {after: os.path.normpath(before.removeprefix("file://")) for before, after in pairs if before != after}
    return {after: before for after, before in found.items() if not os.path.isabs(before) and not is_url(before)}


def relocated(content: Mapping[str, Any], places: Mapping[str, str], folder: str) -> dict[str, Any]:
    """Return the content of a job with the files of another folder; `places` are those of the content."""
    changed: dict[str, Any] = _mapped(content, lambda _, value: moved(value, places, folder))
    return changed


def moved(path: str, places: Mapping[str, str], folder: str) -> str:
    """Return the path of a file in another folder."""
    return located(Path(folder), places[path]) if path in places else path


def identity_of(content: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a job without absolute paths of its folder, and without the paths in ELSEWHERE."""
    changed: dict[str, Any] = _mapped(content, lambda _, value: places.get(value, value), ELSEWHERE)
    if str(changed["privacy"].get("dataset")).startswith(DEFAULT):  # follows from the places
        del changed["privacy"]["dataset"]
    return changed


def versioned(content: Mapping[str, Any], job: Any, version: int) -> dict[str, Any]:
    """Return the content of a job from which a version of its digest is computed."""
    content = {**content, "privacy": {DIGEST_NAMES.get(key, key): value for key, value in content["privacy"].items()}}
    if version > 1:
        return identity_of(content, job.places)
    former: dict[str, Any] = _mapped(content, lambda _, value: job.former.get(value, value))
    return former


def digest_of(content: Any) -> str:
    """Return the SHA-256 of the identity of a job and the digests of its domains."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def default_dataset(paths: list[str], ledger: str, places: Mapping[str, str]) -> str:
    """Return the name of data for which a job states none: the path from the folder of the ledger.

    All jobs of a ledger give the same files the same name, which stays when their common folder is moved. With a
    ledger on a server the path is that from the folder of the job.
    """
    common = files_of(paths)
    if not os.path.isabs(common):
        return common
    if is_address(ledger):
        name = places.get(paths[0], common) if len(paths) == 1 else common
    else:
        name = os.path.relpath(common, os.path.realpath(os.path.dirname(ledger)))
    return name if name.startswith(("/", *DEFAULT)) else f"./{name}"


def files_of(paths: list[str]) -> str:
    """Return the absolute path of files, or their common folder; an address is unchanged."""
    return real(paths[0]) if len(paths) == 1 else os.path.commonpath([real(one) for one in paths] or ["/"])


def folder_of_run(manifest: Mapping[str, Any], run: Path) -> str:
    """Return the folder of the job of a run: at its place from the run directory if the files are there."""
    near = os.path.normpath(os.path.join(str(run), manifest["from_run"])) if manifest["from_run"] else ""
    if near and any(is_there(located(Path(near), one)) for one in manifest["places"].values()):
        return near
    return str(manifest["folder"])


def is_left(manifest: Mapping[str, Any], run: Path, folder: Path) -> bool:
    """Return whether the files of a run's job are no longer where its manifest states, and the job is elsewhere now."""
    if not manifest.get("places") or not manifest.get("folder"):
        return False
    known = folder_of_run(manifest, run)
    gone = not any(is_there(located(Path(known), one)) for one in manifest["places"].values())
    return gone and real(known) != real(str(folder))


def is_of_folder(manifest: Mapping[str, Any], run: Path, folder: Path) -> bool:
    """Return whether a run is that of the job in a folder: of its files, or of files that are no longer there."""
    return real(folder_of_run(manifest, run)) == real(str(folder)) or is_left(manifest, run, folder)


def place_entries(folder: Path, places: Mapping[str, str], run: Path) -> dict[str, Any]:
    """Return the entries of a manifest from which `folder_of_run` finds the files of a job."""
    near = is_url(str(run)) or is_url(str(folder))
    return {"folder": str(folder), "from_run": "" if near else os.path.relpath(folder, run), "places": dict(places)}


def _mapped(content: Any, change: Any, without: tuple[str, ...] = (), key: str = "") -> Any:
    """Return a content with every text changed; texts with a key of `without` are left out."""
    if isinstance(content, Mapping):
        return {name: _mapped(value, change, without, str(name)) for name, value in content.items()
                if not (name in without and isinstance(value, str))}  # fmt: skip
    if isinstance(content, list | tuple):
        return [_mapped(value, change, without, key) for value in content]
    return change(key, content) if isinstance(content, str) else content


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a content in order."""
    if isinstance(content, Mapping):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _texts(value)
    elif isinstance(content, str):
        yield content
