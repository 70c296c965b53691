"""What may be told of a release's secret and of its data: tags keyed by the secret, which tell nothing once it is gone.

The plain hash of the data is an exact function of every record: whoever guesses a table but for one record could test
both guesses against it. So what is written down is HMAC-SHA256(secret, hash). The same construction gives the secret a
public name, by which the ledger tells two draws of one release (a copied run directory) from one draw made twice.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from dpscale.base.errors import JobError
from dpscale.privacy.secret import read_secret


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
