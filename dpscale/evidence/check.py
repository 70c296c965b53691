"""Checking a bundle on a machine without the data: every byte by its hash, the signature, and the sums from integers.

It shares with the rooms that made the release nothing but the way an error is told: `recompute` and `sensitivities` are
of the standard library, and what is compared with them is the package's own copy, whatever the bundle's says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpscale.errors import JobError
from dpscale.evidence import recompute
from dpscale.evidence.signing import ALGORITHM, fingerprint, public_key, verified

HASHES, SIGNATURE = "hashes.json", "signature.json"
SCRIPTS = ("recompute.py", "sensitivities.py")
NEEDED = ("draws.json", "strategies.json", "events.json", "ledger.json", "selftest.json", *SCRIPTS)

Said = dict[str, Any]


def check_bundle(folder: Path, key: Path | None = None) -> Said:
    """What the bundle is found to be; JobError at the first thing that is wrong. `key`: whose signature is expected."""
    try:
        return _found(folder, None if key is None else public_key(key))
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(folder, f"cannot be read ({type(error).__name__})") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, LookupError) as error:
        raise _wrong(folder, f"is not what dpscale writes ({type(error).__name__})") from None


def _found(folder: Path, expected: str | None) -> Said:
    hashes = _hashes(folder)
    signed = _signed(folder, hashes["public_key"], expected)
    if faults := recompute.faults(folder):
        raise _wrong(folder, f"does not hold: {faults[0]}")
    events, selftest = (recompute.read(folder, name) for name in ("events.json", "selftest.json"))
    draws, strategies = (recompute.read(folder, name) for name in ("draws.json", "strategies.json"))
    return {
        "sound": True,
        "signed_by": signed,
        "private": events["private"],
        "release": {name: events["release"][name] for name in ("name", "epsilon", "delta")},
        "dataset": {name: events["dataset"][name] for name in ("epsilon", "delta")},
        "draws": len(draws["draws"]),
        "by_columns_alone": sum("columns" in one for one in strategies["factors"].values()),
        "selections": sum(int(one["count"]) for one in draws["selections"]),
        "files": len(hashes["files"]),
        "selftest_passed": selftest["passed"] and all(one["passed"] for one in selftest["checks"]),
        "own_scripts": all((folder / name).read_bytes() == files("dpscale.evidence").joinpath(name).read_bytes()
                           for name in SCRIPTS),
    }  # fmt: skip


def _hashes(folder: Path) -> Said:
    """hashes.json, once every file is found to be as it says and no other is there."""
    said = _canonical(folder, HASHES)
    listed: Mapping[str, str] = said["files"]
    there = {path.name for path in folder.iterdir()} - {HASHES, SIGNATURE}
    if odd := sorted(there.symmetric_difference(listed)):
        raise _wrong(
            folder, f"has {odd[0]!r}, which {HASHES} does not name" if odd[0] in there else f"lacks {odd[0]!r}"
        )
    if lacking := sorted(set(NEEDED).difference(listed)):
        raise _wrong(folder, f"lacks {lacking[0]!r}")
    for name, digest in listed.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise _wrong(folder, f"has another {name!r} than {HASHES} says")
    return said


def _signed(folder: Path, public: str | None, expected: str | None) -> str | None:
    """The fingerprint of who signed; None of a bundle that nobody did."""
    signature = _canonical(folder, SIGNATURE) if (folder / SIGNATURE).exists() else None
    if (signature is None) != (public is None):
        raise _wrong(folder, f"{'lacks' if signature is None else 'has'} a signature, unlike what {HASHES} says")
    if signature is None or public is None:
        if expected is not None:
            raise _wrong(folder, "is unsigned, and a public key was given")
        return None
    if signature.keys() != {"algorithm", "public_key", "signature"} or signature["algorithm"] != ALGORITHM:
        raise _wrong(folder, "has a signature of another kind")
    if signature["public_key"] != public or not verified(
        public, signature["signature"], (folder / HASHES).read_bytes()
    ):
        raise _wrong(folder, "has a signature that is not of its hashes")
    if expected not in (None, public):
        raise _wrong(folder, f"is signed by another key ({fingerprint(public)})")
    return fingerprint(public)


def _canonical(folder: Path, name: str) -> Said:
    """A file that no hash is of: there is one text for what it says, and that has to be it."""
    content = (folder / name).read_bytes()
    said = json.loads(content)
    if (json.dumps(said, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode() != content:
        raise _wrong(folder, f"has {name!r} not as it was written")
    return dict(said)


def _wrong(folder: Path, got: str) -> JobError:
    return JobError("evidence", f"{folder} {got}", "a bundle as `dpscale evidence` wrote it", "ask the curator for it")
