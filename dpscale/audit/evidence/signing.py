"""Signature of a bundle by a curator's key: Ed25519 over hashes.json, which has the hash of every other file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError

ALGORITHM = "Ed25519"


def signer(path: Path) -> tuple[str, Callable[[bytes], str]]:
    """Return the public key of a private key's PEM file, in hexadecimal, and a function that signs."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _loaded(path, "--key", lambda content: load_pem_private_key(content, password=None), Ed25519PrivateKey)
    return key.public_key().public_bytes_raw().hex(), lambda content: key.sign(content).hex()


def public_key(path: Path) -> str:
    """Return the public key of a PEM file, in hexadecimal."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return str(_loaded(path, "--public-key", load_pem_public_key, Ed25519PublicKey).public_bytes_raw().hex())


def fingerprint(public: str) -> str:
    """Return the SHA-256 of a public key, for comparison by people."""
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()


def verified(public: str, signature: str, content: bytes) -> bool:
    """Return whether the key signed the content."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key, signed = bytes.fromhex(public), bytes.fromhex(signature)
        Ed25519PublicKey.from_public_bytes(key).verify(signed, content)
    except (InvalidSignature, ValueError):
        return False
    return (key.hex(), signed.hex()) == (public, signature)  # one spelling: no byte may differ


def _loaded(path: Path, field: str, load: Callable[[bytes], Any], kind: type) -> Any:
    """Return a key. Raises JobError without any content of the file."""
    try:
        key = load(path.read_bytes())
    except OSError as error:
        raise JobError(field, f"cannot read {path} ({error.strerror})", "a PEM file", "check the path") from None
    except (ValueError, TypeError):  # TypeError: a password is asked for
        key = None
    if not isinstance(key, kind):
        raise JobError(field, f"{path} contains no such key without a password", f"an {ALGORITHM} key as PEM",
                       "make one: openssl genpkey -algorithm ed25519 -out key.pem")  # fmt: skip
    return key
