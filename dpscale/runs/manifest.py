"""`manifest.json`: identity and progress of a run. A folder with this file is a run directory.

The manifest identifies the outputs of stages by the hashes of their files and data frames by keyed tags. Errors of the
disk are converted here too, because every access to a run directory needs it.

*Job file.*
It is beside the manifest, which has the places of the files that the job names.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import pickle
import platform
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpscale.base import VERSION as PROJECT_VERSION
from dpscale.base.errors import DpscaleError, JobError, TransientError
from dpscale.base.nesting import is_too_deep
from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.contributions.unit_ids import RULE
from dpscale.job import Job, job_content
from dpscale.job.data import folder_of_run, moved, relocated
from dpscale.job.sections import SynthesizeTable
from dpscale.storage.files import (
    MANIFEST as MANIFEST,
    WINDOWS,
    is_local,
    place,
    present,
    read_bytes,
    sizes,
    write_whole,
)
from dpscale.storage.objects import slashed

PACKAGES = ("dask", "distributed", "numpy", "numba", "pyarrow", "cryptography")
VERSION = 4  # earlier versions have a manifest for every table and period
DEFAULT_OUTPUTS = {  # output and completion marker of stages whose manifest entry does not record them
    "plan": ("plan", "plan/plan.json"),
    "measure": ("measurements", "measurements"),
    "reconstruct": ("answers", "answers/index.parquet"),
    "report": ("report.html", "report.html"),
}
FIELD_TYPES = {"release": str, "private": bool, "job_sha256": str, "stages": dict}
DRAFTED = "drafted from the data by `dpscale domain sketch`; a person has reviewed it since"
NULLABLE_FIELDS = {"snapshot", "secret", "privacy"}  # null until they exist

JOB_FILE, DOMAINS = "job.toml", "domains"


def first_manifest(seed: int | None, digest: str, number: int, **entries: Any) -> dict[str, Any]:
    """Return the manifest of a run without finished stages.

    Parameters
    ----------
    seed : int or None
        Seed of the noise. Without one the release id is random; with one it follows from the job and `number`.
    digest : str
        Digest of the job.
    number : int
        Number of the run among those of the job, from 1.
    **entries
        Further entries, which take precedence over those of this function.
    """
    return {
        "version": VERSION,
        "release": release_id(seed, digest, number, uuid.uuid4().hex),
        "private": seed is None,
        "job_sha256": digest,
        "versions": versions(),
        "ids": RULE,
        "snapshot": None,
        "secret": None,
        "privacy": None,
        "stages": {},
        **({"number": number} if number > 1 else {}),
        **entries,
    }


def release_id(seed: int | None, digest: str, number: int, random: str) -> str:
    """Return the release id of noise labels: the random one, or with a seed one that follows from job and number."""
    return random if seed is None else f"seed{seed}-{digest[:24]}" + f"-{number}" * (number > 1)


def versions() -> dict[str, str]:
    """Return the installed versions of Python and of the packages that a release depends on."""
    installed = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "dpscale": PROJECT_VERSION, **installed}


def resolve_path(path: str | Path) -> Path:
    """Return a path with symbolic links resolved, including links to paths that do not exist yet."""
    where = place(path)
    return Path(os.path.realpath(where)) if is_local(where) else where


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run; raise JobError if the file is damaged or missing."""
    try:
        content = json.loads(read_bytes(folder / MANIFEST))
    except (FileNotFoundError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or is_too_deep(content) or not _is_valid(content):
        raise JobError("run directory", f"{MANIFEST} in {folder} is damaged", "the file as the run wrote it",
                       "restore it, or start a new run")  # fmt: skip
    return content


def check_version(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise JobError if the run has another version of the file layout."""
    if manifest.get("version") != VERSION:
        raise JobError("run directory", f"{folder} was created by another version of dpscale",
                       "a run of this version",
                       "read the files in answers/, which remain valid, or open the run with the version that its "
                       "manifest.json names")  # fmt: skip


def parse_row_settings(folder: Path, content: object) -> SynthesizeTable:
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
    """Return whether the entries of a manifest that every run has exist and have their types."""
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
        """Start with an empty cache; the file is read at the first access."""
        self.folder = folder
        self._content: dict[str, Any] = {}
        self._pickled: tuple[object, bytes] = (None, b"")  # a manifest with its bytes, from which copies are faster
        self._signature_read: tuple[int, int, int] | None = None

    def read(self) -> dict[str, Any]:
        """Return a copy of the manifest.

        `_pickled` is (manifest, its bytes); a copy is loaded from the bytes, which are computed once for each manifest.
        """
        content, (pickled, data) = self.view(), self._pickled
        if pickled is not content:  # compared, because another thread may replace the manifest meanwhile
            data = pickle.dumps(content)
            self._pickled = content, data
        return dict(pickle.loads(data))

    def view(self) -> dict[str, Any]:
        """Return the manifest, which the caller does not change.

        The file is read again if its signature changed or is unknown.
        """
        sign = self._signature()
        if sign is None or sign != self._signature_read:
            self._content, self._signature_read = read_manifest(self.folder), sign
        return self._content

    def forget(self) -> None:
        """Read the file next time; a shared disk may report an outdated signature for a while."""
        self._signature_read = None

    def write(self, manifest: dict[str, Any]) -> None:
        """Write the manifest atomically and cache it."""
        text = json.dumps(manifest, indent=2)
        write_whole(self.folder / MANIFEST, text.encode())
        self._content, self._signature_read = json.loads(text), self._signature()

    def _signature(self) -> tuple[int, int, int] | None:
        """Return inode, size and time of the file, which change when it is written; None if it must be read again."""
        path = self.folder / MANIFEST
        if not is_local(path):
            return None
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


FAILURE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE)
SHARE = 1 << 25  # bytes that a task hashes
DENIAL_ERRNOS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Convert errors of the disk into TransientError if it is full or fails, and JobError if access is denied."""
    try:
        yield
    except OSError as error:
        converted = _disk_error(error, place)
        if converted is None:
            raise
    else:
        return
    raise converted


def _disk_error(error: OSError, place: Path) -> DpscaleError | None:
    """Return the error to report for a failed or denied access to a run directory; None for any other error.

    FAILURE_ERRNOS are errors of full or failing disks and DENIAL_ERRNOS those of denied access, which count only for
    files in `place`.
    """
    if error.errno in FAILURE_ERRNOS:
        return TransientError("run directory", f"cannot write in {place} ({os.strerror(error.errno)})", "",
                              "fix it and run again to resume")  # fmt: skip
    # access to data or sockets may be denied as well
    if error.errno in DENIAL_ERRNOS and f"{error.filename}/".startswith(f"{place}/"):
        return JobError("run directory", f"cannot work in {place} ({os.strerror(error.errno)})",
                        "a directory that this user can read and write", "fix it or choose another")  # fmt: skip
    return None


def digest_files(root: Path, bytes_of: Mapping[Path, int], each: ParallelMap = serial_map) -> str:
    """Return the SHA-256 digest of names and contents of files of a run directory, given with their numbers of bytes.

    `each` is the parallel map that reads the contents; that of an engine reads them in tasks.
    """
    files = sorted(bytes_of, key=slashed)
    groups = _shares([(path, bytes_of[path]) for path in files])  # files of each task
    parallel = each if len(groups) > 1 else serial_map
    contents = [content_hash for hashes in parallel(_content_hashes, groups) for content_hash in hashes]

    digest = hashlib.sha256()
    for path, content in zip(files, contents, strict=True):
        digest.update(f"{slashed(path.relative_to(root))}\0{content}\n".encode())
    return digest.hexdigest()


SizedFile = tuple[Path, int]


def _shares(files: Sequence[SizedFile]) -> list[list[SizedFile]]:
    """Divide files, in order, into lists of about SHARE bytes."""
    shares: list[list[SizedFile]] = [[]]
    size = 0
    for path, bytes_of_file in files:
        if size >= SHARE:
            shares.append([])
            size = 0
        shares[-1].append((path, bytes_of_file))
        size += bytes_of_file
    return shares


def _content_hashes(files: Sequence[SizedFile]) -> list[str]:
    """Return the SHA-256 of the content of each file, given with its number of bytes."""
    hashes = []
    for path, size in files:
        if size < SHARE and not is_local(path):  # one request to the store
            hashes.append(hashlib.sha256(read_bytes(path)).hexdigest())
            continue
        with path.open("rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashes


def check_output(root: Path, stage: str, entry: Mapping[str, Any], each: ParallelMap = serial_map) -> None:
    """Raise JobError unless the hash of the files of a finished stage is that of its entry in the manifest.

    A stage without an entry is not finished. One without an output of its own is not checked: the parts of the run
    check theirs.
    """
    output_name, _ = stage_output(stage, entry) if entry else ("", None)
    if not output_name:
        return
    output = root / output_name
    if entry.get("sha256") is None:
        raise JobError("run directory", f"manifest.json in {root} lacks the hash of stage {stage}",
                       "the file as the run wrote it", "restore it, or start a new run")  # fmt: skip
    if output_digest(root, output, each) != entry["sha256"]:
        raise JobError("run directory", f"files that stage {stage} wrote in {output} were changed",
                       "the files as that stage wrote them", "restore them, or start a new run")  # fmt: skip


def check_outputs(root: Path, stages: Mapping[str, Mapping[str, Any]], each: ParallelMap = serial_map) -> None:
    """Raise JobError unless the files of all finished stages up to the measurement are as those stages wrote them."""
    for name in ("discover", "plan", "units", "measure"):
        check_output(root, name, stages.get(name, {}), each)


def output_digest(root: Path, output: Path, each: ParallelMap = serial_map) -> str:
    """Return the hash of the output of a stage: a file, or all files of a folder."""
    return digest_files(root, sizes(output), each)


STATE_VARIABLE = "DPSCALE_STATE"
KEY_BYTES = 32  # 256 bits of the user's key
KEY_FILE = "frames.key"


def frame_tag(release: str, content: str, create: bool = False) -> dict[str, str] | None:
    """Return the manifest entry that identifies a data frame; None if this user has no key.

    Parameters
    ----------
    release : str
        Release id. Two releases of one frame have unrelated tags.
    content : str
        Hash of the content of the frame.
    create : bool
        Whether to create a key if there is none.
    """
    tagged = keyed_tags([f"frame\0{release}\0{content}"], create)
    if tagged is None:
        return None
    key, [tag] = tagged
    return {"key": key, "tag": tag}


def keyed_tags(contents: Sequence[str], create: bool = False) -> tuple[str, list[str]] | None:
    """Return the name of the key of this user and the keyed hashes of contents; None if this user has no key.

    The name of a key is a hash under it, so that tags of different keys are not compared.
    """
    key = _user_key(create)
    if key is None:
        return None
    tags = [hmac.new(key, content.encode(), hashlib.sha256).hexdigest() for content in contents]
    return hmac.new(key, b"key", hashlib.sha256).hexdigest()[:16], tags


def _user_key(create: bool) -> bytes | None:
    """Return the key of this user; None if there is none or, by its file mode, other users can read it."""
    folder = _folder()
    if folder is None:
        return None
    if create:
        with suppress(OSError):
            _make_key(folder / KEY_FILE)
    try:
        if not WINDOWS and (folder / KEY_FILE).stat().st_mode & 0o077:
            return None
        key = (folder / KEY_FILE).read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _make_key(path: Path) -> None:
    """Write a new key atomically, unless there is one.

    The key is written to a draft that only this user can read, and linked to its name, which fails if another process
    was first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with suppress(FileExistsError):
        if path.exists():
            return
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        finally:
            os.unlink(draft)


def _folder() -> Path | None:
    """Return the state folder of dpscale; None if the user has no home directory."""
    stated = os.environ.get(STATE_VARIABLE)
    if stated:
        return Path(stated)
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "dpscale"


def read_stored(path: Path, manifest: Mapping[str, Any]) -> Job:
    """Return the job of a run directory, with its files where they are after a move.

    The domains of several tables are those that the run has stored; older runs have stored none. `places` of the
    manifest maps the paths in the stored job to those that the user wrote, relative to the folder of the job.
    """
    content, folder = job_content(path / JOB_FILE, stored=True)
    if "places" not in manifest:
        return Job.parse(content, folder)
    job_folder, places = folder_of_run(manifest, path), manifest["places"]
    content, former = relocated(content, places, job_folder), dict[str, str]()
    for name, table in content.get("tables", {}).items():
        stored = path / DOMAINS / name / "domain.toml"
        if present(stored):
            former[str(stored)] = table["domain"]  # the path that the job states for this domain
            table["domain"] = str(stored)
    job = Job.parse(content, folder)
    places_now = {moved(place, places, job_folder): stated for place, stated in places.items()}
    return job.at(Path(job_folder), places_now, former)
