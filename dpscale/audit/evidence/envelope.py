"""Signed envelope of a bundle: a DSSE envelope with an in-toto statement that has the SHA-256 of every other file.

    envelope.json   {"payload": base64(statement), "payloadType": "application/vnd.in-toto+json", "signatures": [...]}

The signature is Ed25519 over the pre-authentication encoding of DSSE,

    "DSSEv1" SP len(type) SP type SP len(statement) SP statement,

so tools for DSSE and in-toto verify it with the curator's public key. The list of signatures is empty in an unsigned
bundle. All texts are canonical, so no byte can change unnoticed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError

ENVELOPE, ALGORITHM = "envelope.json", "Ed25519"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE, PREDICATE_TYPE = "https://in-toto.io/Statement/v1", "urn:dpscale:evidence:6"

Fields = dict[str, Any]
Signer = tuple[str, Callable[[bytes], bytes]]


def sealed(contents: Mapping[str, bytes], key: Signer | None) -> bytes:
    """Return the envelope of the files of a bundle, given by name.

    Parameters
    ----------
    contents : mapping of str to bytes
    key : tuple, optional
        Public key in hexadecimal, and a function that signs; by default the envelope has no signature.

    Notes
    -----
    Guarantee: with the curator's public key, any change of a file of the bundle is detected.
    """
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    statement, signatures = statement_of(hashes, key and key[0]), []
    if key is not None:
        public, sign = key
        signature = base64.b64encode(sign(encoded(statement))).decode()
        signatures = [{"keyid": fingerprint(public), "sig": signature}]
    payload = base64.b64encode(statement).decode()
    return canonical({"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": signatures})


def canonical(value: Any) -> bytes:
    """Return the canonical text of a value; equal values have equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def encoded(statement: bytes) -> bytes:
    """Return the pre-authentication encoding of DSSE, which is signed."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(statement), statement)


def opened(envelope: bytes) -> tuple[dict[str, str], str | None]:
    """Return the hashes of the files of a bundle, and the public key that signed them; None if it is unsigned.

    The statement is written again from its hashes and key and must be the same bytes, so that nothing else is in it.

    Raises
    ------
    ValueError
        If the envelope has another form, or a signature that does not match; the text ends a sentence on the bundle.
    """
    whole = json.loads(envelope)
    if canonical(whole) != envelope or whole["payloadType"] != PAYLOAD_TYPE:
        raise ValueError(f"contains {ENVELOPE!r} with a text that is not canonical")
    text = base64.b64decode(whole["payload"], validate=True)
    statement, signatures = json.loads(text), whole["signatures"]
    hashes = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    public = statement["predicate"]["public_key"]
    expected = statement_of(hashes, public)
    if text != expected or base64.b64encode(text).decode() != whole["payload"]:
        raise ValueError(f"contains {ENVELOPE!r} with a text that is not canonical")
    # the statement has the public key of a signed bundle
    if (public is None) != (signatures == []):
        word = "lacks" if signatures == [] else "has"
        raise ValueError(f"{word} a signature, in contradiction to its statement")
    if public is None:
        return hashes, None

    [signature] = signatures
    if signature.keys() != {"keyid", "sig"} or signature["keyid"] != fingerprint(public):
        raise ValueError(f"has a signature that is not {ALGORITHM}")
    if not verified(public, signature["sig"], encoded(text)):
        raise ValueError("has a signature that does not match its hashes")
    return hashes, str(public)


def statement_of(hashes: Mapping[str, str], public: str | None) -> bytes:
    """Return the in-toto statement of files by their hashes; equal ones have equal bytes."""
    subject = [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)]
    return canonical({"_type": STATEMENT_TYPE, "subject": subject, "predicateType": PREDICATE_TYPE,
                      "predicate": {"public_key": public}})  # fmt: skip


def signer(path: Path) -> Signer:
    """Return the public key of a private key's PEM file, in hexadecimal, and a function that signs bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _loaded(path, "--key", lambda content: load_pem_private_key(content, password=None), Ed25519PrivateKey)
    return key.public_key().public_bytes_raw().hex(), key.sign


def public_key(path: Path) -> str:
    """Return the public key of a PEM file, in hexadecimal."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return str(_loaded(path, "--public-key", load_pem_public_key, Ed25519PublicKey).public_bytes_raw().hex())


def fingerprint(public: str) -> str:
    """Return the SHA-256 of a public key, for comparison by people."""
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()


def verified(public: str, signature: str, content: bytes) -> bool:
    """Return whether the key signed the content; the signature is in base64."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key, signed = bytes.fromhex(public), base64.b64decode(signature, validate=True)
        Ed25519PublicKey.from_public_bytes(key).verify(signed, content)
    except (InvalidSignature, ValueError):
        return False
    return (key.hex(), base64.b64encode(signed).decode()) == (public, signature)  # one spelling: no byte may differ


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
