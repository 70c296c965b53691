"""A refusal leaves nothing behind: the run directory that a call has made goes again, unless something was charged.

What was charged, or may have been, stays, and so does a directory that was there before: a run goes on with its own
secret. Only folders of this machine are taken back; of what is in a store nobody could say who else works there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from dpscale.base.errors import DpscaleError, TransientError
from dpscale.privacy.secret import destroy_secret
from dpscale.runs.stages.ending import entry_of
from dpscale.storage.files import is_local

SECRET = "secret.key"


class Directory(Protocol):
    """A run of one table or of several."""

    path: Path
    made: str

    @property
    def manifest(self) -> dict[str, Any]: ...
    def locked(self) -> AbstractContextManager[None]: ...


Known = Callable[[Any], Any]


@contextmanager
def leaving_nothing(run: Directory, charged: Known = entry_of) -> Iterator[None]:
    """Take the directory back where what is done inside is refused. `charged`: what the ledger holds of a run."""
    try:
        yield
    except TransientError:  # the same command goes on in it
        raise
    except DpscaleError:
        if run.made and is_local(run.path):
            with suppress(DpscaleError, OSError):
                _take_back(run, charged)
        raise


def _take_back(run: Directory, charged: Known) -> None:
    """Nothing of a run that the ledger knows, and nothing while another process works in it."""
    with run.locked():
        if run.manifest["privacy"] is not None or charged(run) is not None:
            return
        for secret in run.path.rglob(SECRET):
            destroy_secret(secret)
        for path in run.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if run.made == "folder":
        run.path.rmdir()
        if run.path.parent.name == "runs":
            run.path.parent.rmdir()  # which is refused where there are others
