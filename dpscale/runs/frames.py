"""Whether a frame is the one that a run measured.

A run directory may be public, so it holds no hash of its data that somebody could test guesses against. It holds

    HMAC-SHA256(key, release id and hash of the frame's content)

under a key in the state folder of the user (`$DPSCALE_STATE`, else `$XDG_STATE_HOME/dpscale`, else
`~/.local/state/dpscale`), which only this user can read. Without the key nothing is said of a frame.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

VARIABLE = "DPSCALE_STATE"
KEY_BYTES = 32
NAME = "frames.key"


def frame_tag(release: str, content: str, create: bool = False) -> dict[str, str] | None:
    """The entry of the manifest that knows a frame; None where this user has no key.

    Parameters
    ----------
    release: id of the release. Two releases of one frame have unrelated tags.
    content: hash of the content of the frame.
    create: whether to make a key where there is none.
    """
    key = _user_key(create)
    if key is None:
        return None
    tag = hmac.new(key, f"frame\0{release}\0{content}".encode(), hashlib.sha256).hexdigest()
    return {"key": hmac.new(key, b"key", hashlib.sha256).hexdigest()[:16], "tag": tag}


def _user_key(create: bool) -> bytes | None:
    """The key of this user, which no other user can read; None where there is none, or it is open to others."""
    folder = _folder()
    if folder is None:
        return None
    if create:
        with suppress(OSError):
            _make_key(folder / NAME)
    try:
        if (folder / NAME).stat().st_mode & 0o077:
            return None
        key = (folder / NAME).read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _make_key(path: Path) -> None:
    """Write a new key whole, unless there is one."""
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
    """The state folder of dpscale; None where the user has no home."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "dpscale"
