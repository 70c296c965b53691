"""The secret of a release, as a file that only its owner reads, from the first draw to the last.

It is 256 bits from the operating system, or from a seed in tests. Workers read the file themselves: the secret enters
no task, argument, log or manifest. When all noise is drawn it is destroyed; a run that has lost it cannot go on,
since a new secret would draw the same measurements afresh. In an object store who may read the prefix may read it, and
a store that keeps old versions keeps it: give runs a prefix of their own, without versions.
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
from dpscale.storage.files import create, flush, is_local, present, read_bytes, store_errors


def make_secret(path: Path, seed: int | None = None) -> None:
    """Write a new secret, readable by its owner alone; an existing one stays."""
    if present(path):
        return
    content = new_secret() if seed is None else seeded_secret(seed)
    if is_local(path):
        _make_file(path, content)
    else:
        create(path, content)  # where another process was first, its secret is the release's


def _make_file(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    flush(path.parent)  # a draw must never outlive its secret, not in a power cut either


def read_secret(path: Path) -> bytes:
    """The secret; JobError where it is lost."""
    try:
        secret = read_bytes(path)
    except FileNotFoundError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise JobError("run directory", "the secret of the release is lost", "the directory as the run left it",
                       "the run cannot go on: start a new one, which is a new release")  # fmt: skip
    return secret


def destroy_secret(path: Path) -> None:
    """Overwrite and remove the secret. What a disk, a store or a backup keeps beneath is outside our reach."""
    with suppress(FileNotFoundError), store_errors(path):
        if is_local(path):
            with open(path, "r+b") as file:
                file.write(bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
        if present(path):
            path.unlink()


def snapshot_tag(secret: bytes, snapshot: str) -> str:
    """The snapshot's name under the secret, in hexadecimal: equal for equal data within one release, else unrelated."""
    return _tag(secret, f"dpscale snapshot:{snapshot}")


def secret_tag(secret: bytes) -> str:
    """The secret's public name, in hexadecimal."""
    return _tag(secret, "dpscale secret")


def round_tag(secret: bytes, decision: str) -> str:
    """A round's decision under the secret: whoever edits the one cannot make the other."""
    return _tag(secret, f"dpscale round:{decision}")


@dataclass(frozen=True)
class SecretPlace:
    """Where tasks find the secret of a release, and its public name: another that stands there draws nothing."""

    path: Path
    tag: str

    def read(self) -> bytes:
        """The secret; JobError where it is lost or is not the one that the release began with."""
        secret = read_secret(self.path)
        if secret_tag(secret) != self.tag:
            raise JobError("run directory", "its secret is not the one that the release began with",
                           "the directory as the run left it", "start a new run, which is a new release")  # fmt: skip
        return secret


def _tag(secret: bytes, text: str) -> str:
    """Unrelated to every stream's key: those are of texts that begin with a brace (JSON)."""
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
