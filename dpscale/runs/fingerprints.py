"""Hashes of the files of a run directory, tags of data frames, and errors of the disk."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpscale.base.errors import DpscaleError, JobError, TransientError
from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.runs.manifest import stage_output

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
    if error.errno in FAILURE_ERRNOS:
        return TransientError("run directory", f"cannot write in {place} ({os.strerror(error.errno)})", "",
                              "fix it and run again to resume")  # fmt: skip
    # access to data or sockets may be denied as well
    if error.errno in DENIAL_ERRNOS and f"{error.filename}/".startswith(f"{place}/"):
        return JobError("run directory", f"cannot work in {place} ({os.strerror(error.errno)})",
                        "a directory that this user can read and write", "fix it or choose another")  # fmt: skip
    return None


def digest_files(root: Path, paths: Iterable[Path], each: ParallelMap = serial_map) -> str:
    """Return the SHA-256 digest of names and contents of files of a run directory; partial files are ignored.

    `each` is the parallel map that reads the contents; that of an engine reads them in tasks.
    """
    files = [path for path in sorted(paths, key=str) if not path.name.endswith(".partial")]
    share = _shares(files)
    contents = (one for hashes in (each if len(share) > 1 else serial_map)(_content_hashes, share) for one in hashes)
    digest = hashlib.sha256()
    for path, content in zip(files, contents, strict=True):
        digest.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return digest.hexdigest()


def _shares(files: Sequence[Path]) -> list[list[Path]]:
    """Divide files, in order, into lists of about SHARE bytes."""
    shares: list[list[Path]] = [[]]
    size = 0
    for path in files:
        if size >= SHARE:
            shares.append([])
            size = 0
        shares[-1].append(path)
        size += path.stat().st_size
    return shares


def _content_hashes(paths: Sequence[Path]) -> list[str]:
    found = []
    for path in paths:
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found


def check_output(root: Path, stage: str, entry: Mapping[str, Any], each: ParallelMap = serial_map) -> None:
    """Raise JobError if the hash of the files of a finished stage differs from its entry in the manifest.

    An entry without a hash is not checked.
    """
    output = root / stage_output(stage, entry)[0]
    if entry.get("sha256") is not None and output_digest(root, output, each) != entry["sha256"]:
        raise JobError("run directory", f"files that stage {stage} wrote in {output} were changed",
                       "the files as that stage wrote them", "restore them, or start a new run")  # fmt: skip


def output_digest(root: Path, output: Path, each: ParallelMap = serial_map) -> str:
    """Return the hash of the output of a stage: a file, or all files of a folder."""
    files = [path for path in output.rglob("*") if path.is_file()] if output.is_dir() else [output]
    return digest_files(root, files, each)


STATE_VARIABLE = "DPSCALE_STATE"
KEY_BYTES = 32
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
    key = _user_key(create)
    if key is None:
        return None
    tag = hmac.new(key, f"frame\0{release}\0{content}".encode(), hashlib.sha256).hexdigest()
    return {"key": hmac.new(key, b"key", hashlib.sha256).hexdigest()[:16], "tag": tag}


def _user_key(create: bool) -> bytes | None:
    """Return the key of this user; None if there is none or if other users can read it."""
    folder = _folder()
    if folder is None:
        return None
    if create:
        with suppress(OSError):
            _make_key(folder / KEY_FILE)
    try:
        if (folder / KEY_FILE).stat().st_mode & 0o077:
            return None
        key = (folder / KEY_FILE).read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _make_key(path: Path) -> None:
    """Write a new key atomically, unless there is one."""
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
    if named := os.environ.get(STATE_VARIABLE):
        return Path(named)
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "dpscale"
