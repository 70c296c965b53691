"""Checking a bundle on a machine without the data: every byte by its hash, the signature, and the sums from integers.

It shares with the rooms that made the release nothing but the way an error is told: `recompute`, `crosscheck` and
`sensitivities` are of the standard library, and what is compared with them is the package's own copy, whatever the
bundle's says. Who changes all files in the same way passes these checks: the result names what stays unverified without
the curator's public key or the head of the ledger's hash chain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpscale.audit.evidence import crosscheck, recompute
from dpscale.audit.evidence.signing import ALGORITHM, fingerprint, public_key, verified
from dpscale.base.errors import JobError

HASHES, SIGNATURE = "hashes.json", "signature.json"
SCRIPTS = {
    "dpscale-evidence/1": ("recompute.py", "sensitivities.py"),
    "dpscale-evidence/2": ("recompute.py", "sensitivities.py", "crosscheck.py", "shapes.py"),
}
SHIPPED: dict[str, dict[str, str]] = {  # SHA-256 of the scripts of older versions, by format
    "dpscale-evidence/1": {
        "recompute.py": "515c31416bd0f3a26bf8613d687161cc943d52fdfa4a6780b309ceaa2cb664cf",
        "sensitivities.py": "51aa7654cf8daa4744e46f76d174a56a60a73a18e40c7b6fd13b37d0e534d260",
    },
}
NEEDED = ("draws.json", "strategies.json", "events.json", "ledger.json", "selftest.json", "checklist.json",
          "run-files.json", "versions.json", "job.toml", "domain.toml")  # fmt: skip

Said = dict[str, Any]


def check_bundle(folder: Path, key: Path | None = None, heads: Mapping[str, int] | None = None) -> Said:
    """Check a bundle; JobError at the first thing that is wrong.

    Parameters
    ----------
    folder : the bundle.
    key : a public key (PEM) that must have signed it.
    heads : links of the hash chains of the curator's ledger, each with the number of links behind it; the head of the
        bundle must be one of them.

    Returns
    -------
    What the bundle claims and how it was checked, ready for JSON. `unverified` lists what these checks do not show.
    """
    try:
        return _found(folder, None if key is None else public_key(key), heads)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(folder, f"cannot be read ({type(error).__name__})") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, LookupError, StopIteration) as error:
        raise _wrong(folder, f"is not what dpscale writes ({type(error).__name__})") from None


def _found(folder: Path, expected: str | None, heads: Mapping[str, int] | None) -> Said:
    hashes = _hashes(folder)
    signed = _signed(folder, hashes["public_key"], expected)
    if faults := recompute.faults(folder):
        raise _wrong(folder, f"does not hold: {faults[0]}")
    events, selftest = (recompute.read(folder, name) for name in ("events.json", "selftest.json"))
    draws, strategies = (recompute.read(folder, name) for name in ("draws.json", "strategies.json"))
    chain, alone = recompute.read(folder, "ledger.json").get("chain"), _by_columns_alone(strategies)
    return {
        "sound": True,
        "signed_by": signed,
        "private": events["private"],
        "release": {name: events["release"][name] for name in ("name", "epsilon", "delta")},
        "dataset": {name: events["dataset"][name] for name in ("epsilon", "delta")},
        "draws": len(draws["draws"]),
        "by_columns_alone": alone,
        "selections": sum(int(one["count"]) for one in draws["selections"]),
        "files": len(hashes["files"]),
        "selftest_passed": selftest["passed"] and all(one["passed"] for one in selftest["checks"]),
        "selftest_checks": len(selftest["checks"]),
        "own_scripts": _own_scripts(folder, hashes["files"]),
        "head": chain["head"] if chain else None,
        "later_entries": _later(folder, chain, heads),
        "unverified": [] if expected else [*_unverified(heads, signed), *crosscheck.unverified(folder)],
    }


def _by_columns_alone(strategies: Said) -> int:
    """How many strategies are known by the norms of their columns alone."""
    parts = [part for one in strategies["factors"].values() for part in (one, *one.get("levels", ()))]
    return sum("columns" in part for part in parts)


def _later(folder: Path, chain: Said | None, heads: Mapping[str, int] | None) -> int | None:
    """How many entries the ledger has behind the head of the bundle; None where no head was given."""
    if heads is None:
        return None
    if chain is None:
        raise _wrong(folder, "has no hash chain of the ledger, as an older version made it, and a ledger was given")
    if chain["head"] not in heads:
        raise _wrong(folder, f"has a hash chain with the head {chain['head']}, which the ledger does not have")
    return heads[chain["head"]]


def _unverified(heads: Mapping[str, int] | None, signed: str | None) -> Iterator[str]:
    """What is not shown without the curator's key, a sentence each."""
    if heads is None:
        yield ("who made the bundle: whoever changes all its files in the same way passes this check; compare it with "
               "the curator's ledger (--ledger) or the curator's key (--public-key)")  # fmt: skip
    else:
        yield ("draws, self-test, versions and hashes of answers: the ledger's head stands for charges, caps, privacy "
               "units, domain and plan alone; the curator's key (--public-key) stands for all")  # fmt: skip
    if signed is not None:
        yield "whose key signed it: --public-key names the one that must have"


def _own_scripts(folder: Path, hashes: Mapping[str, str]) -> bool:
    """Whether its scripts are those of this version, or those that an older version shipped with that format."""
    form = recompute.read(folder, "versions.json")["format"]
    if form in SHIPPED:
        return all(hashes[name] == digest for name, digest in SHIPPED[form].items())
    return all((folder / name).read_bytes() == files("dpscale.audit.evidence").joinpath(name).read_bytes()
               for name in SCRIPTS[form])  # fmt: skip


def _hashes(folder: Path) -> Said:
    """hashes.json, once every file is found to be as it says and no other is there."""
    said = _canonical(folder, HASHES)
    listed: Mapping[str, str] = said["files"]
    there = {path.name for path in folder.iterdir()} - {HASHES, SIGNATURE}
    if odd := sorted(there.symmetric_difference(listed)):
        raise _wrong(
            folder, f"has {odd[0]!r}, which {HASHES} does not name" if odd[0] in there else f"lacks {odd[0]!r}"
        )
    form = recompute.read(folder, "versions.json")["format"] if "versions.json" in listed else ""
    if lacking := sorted({*NEEDED, *SCRIPTS.get(form, ())}.difference(listed)):
        raise _wrong(folder, f"lacks {lacking[0]!r}")
    if form not in SCRIPTS:
        raise _wrong(folder, "is of a format that this version does not know")
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
