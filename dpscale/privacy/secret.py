"""Noise key (secret) of a release: a file readable only by its owner, from the first draw to the last.

The secret is 256 bits from the operating system, or derived from a seed in tests. Workers read the file themselves, so
the secret is never part of a task, argument, log or manifest. It is destroyed when all noise is drawn. A run that has
lost its secret cannot continue, because a new secret would draw different noise for the same measurements. In an
object store, everyone who may read the prefix may read the secret, and a store with versioning retains it: use a
separate prefix without versioning for runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpscale.base.errors import JobError
from dpscale.privacy.streams import SECRET_BYTES, new_secret, seeded_secret
from dpscale.storage.files import (
    create,
    flush,
    is_local,
    open_in_place,
    present,
    read_bytes,
    remove,
    rename_over,
    store_errors,
)


def make_secret(path: Path, seed: int | None = None) -> None:
    """Write a new secret, readable only by its owner; an existing one is unchanged.

    With a `seed` the secret is computed from it instead of random.
    """
    if present(path):
        return
    content = new_secret() if seed is None else seeded_secret(seed)
    if is_local(path):
        _make_file(path, content)
    else:
        create(path, content)  # if another process was first, the release uses its secret


def _make_file(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, and make sure that it is on the disk before anything is drawn with it.

    The file is written beside its place (.partial) and then renamed, so that it is never incomplete.
    """
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(partial)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

    rename_over(partial, path)
    flush(path.parent)  # a draw must never outlive its secret, even after a power cut


def read_secret(path: Path) -> bytes:
    """Return the secret. Raises JobError if it is lost."""
    try:
        secret = read_bytes(path)
    except FileNotFoundError:
        secret = b""

    if len(secret) != SECRET_BYTES:
        raise JobError("run directory", "the secret of the release is lost", "the directory as the run left it",
                       "start a new run, which is a new release")  # fmt: skip
    return secret


def destroy_secret(path: Path) -> None:
    """Overwrite and remove the secret; copies on the underlying disk, in a store or in a backup are not removed.

    A local file is overwritten with zeros first; a missing file is no error.
    """
    with suppress(FileNotFoundError), store_errors(path):
        if is_local(path):
            with os.fdopen(open_in_place(path, os.O_RDWR), "r+b") as file:
                file.write(bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
        if present(path):
            remove(path)


def snapshot_tag(secret: bytes, snapshot: str) -> str:
    """Return the snapshot's keyed hash in hexadecimal: equal for equal data within one release, otherwise unrelated."""
    return _tag(secret, f"dpscale snapshot:{snapshot}")


def secret_tag(secret: bytes) -> str:
    """Return the public identifier of the secret in hexadecimal."""
    return _tag(secret, "dpscale secret")


def round_tag(secret: bytes, decision: str) -> str:
    """Return the keyed hash of a round's decision; an edited decision would need the secret to match it."""
    return _tag(secret, f"dpscale round:{decision}")


@dataclass(frozen=True)
class SecretFile:
    """Path of the noise key and its public tag, with which tasks detect a different key."""

    path: Path
    tag: str

    def read(self) -> bytes:
        """Return the secret. Raises JobError if it is lost or is not the one with which the release began."""
        secret = read_secret(self.path)
        if secret_tag(secret) != self.tag:
            raise JobError("run directory", "its secret differs from the one at the start of the release",
                           "the directory as the run left it", "start a new run, which is a new release")  # fmt: skip
        return secret


def _tag(secret: bytes, text: str) -> str:
    """Return the HMAC of a text; unrelated to every stream key, because those texts begin with a brace (JSON)."""
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
