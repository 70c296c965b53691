"""Verification of a bundle on a machine without the data: hashes, signature, and costs recomputed from integers.

The module shares only the error classes with the packages that make a release: `recompute` and the scripts beside it
use only the standard library, and the installed copies are used, never the bundle's. A consistent change of all files
passes these checks: the result lists what remains unverified without the curator's public key or the head of the
ledger's hash chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpscale.audit.evidence import recompute
from dpscale.audit.evidence.envelope import ENVELOPE, fingerprint, opened, public_key
from dpscale.base.errors import JobError

FORMAT = "dpscale-evidence/6"
SCRIPTS = ("recompute.py", "sensitivities.py", "checklist.py")
NEEDED = (*SCRIPTS, *(f"{name}.json" for name in recompute.FILES), "job.toml")

Fields = dict[str, Any]


def check_bundle(folder: Path, key: Path | None = None, heads: Mapping[str, int] | None = None) -> Fields:
    """Check a bundle.

    Parameters
    ----------
    folder : Path
        The bundle.
    key : Path, optional
        Public key (PEM) that must have signed the bundle.
    heads : mapping of str to int, optional
        Links of the hash chains of the curator's ledger, each with the number of later links; the head of the bundle
        must be one of them.

    Returns
    -------
    dict
        Claims of the bundle and results of the checks, ready for JSON. `unverified` lists facts that the checks do not
        establish.

    Raises
    ------
    JobError
        At the first failed check.

    Notes
    -----
    Guarantee: the listed draws cost at most what was charged for them, and the claimed ε follows from their costs.
    """
    try:
        return _checked(folder, None if key is None else public_key(key), heads)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(folder, f"is unreadable ({type(error).__name__})") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, LookupError, StopIteration) as error:
        raise _wrong(folder, f"is malformed ({type(error).__name__})") from None


def _checked(folder: Path, expected: str | None, heads: Mapping[str, int] | None) -> Fields:
    """Return what `check_bundle` reports on a folder: claims, counts of draws and files, and what stays unverified.

    Parameters
    ----------
    folder : Path
    expected : str or None
        Fingerprint of the key that must have signed the bundle.
    heads : mapping of str to int or None
        Links of the chains of the curator's ledger, each with the number of later links.
    """
    hashes, signed = _hashes(folder, expected)
    if faults := recompute.faults(folder):
        raise _wrong(folder, f"is inconsistent: {faults[0]}")
    contents = recompute.read_files(folder)
    claims, selftest, chain = contents["claims"], contents["selftest"], contents["ledger"]["chain"]
    records = contents["records"]["records"]
    # strategies and their levels; one with `columns` is in the bundle by the norms of its columns only
    strategies = contents["strategies"]["factors"].values()
    pieces = [part for strategy in strategies for part in (strategy, *strategy.get("levels", ()))]
    return {
        "sound": True,
        "signed_by": signed,
        "private": claims["private"],
        "release": {name: claims["release"][name] for name in ("name", "epsilon", "delta")},
        "dataset": {name: claims["dataset"][name] for name in ("epsilon", "delta")},
        "parts": list(contents["parts"]),
        "draws": sum(not recompute.is_selection(record) for record in records),
        "by_columns_alone": sum("columns" in part for part in pieces),
        "selections": sum(int(record["count"]) for record in records if recompute.is_selection(record)),
        "files": len(hashes),
        "selftest_passed": selftest["passed"] and all(check["passed"] for check in selftest["checks"]),
        "selftest_checks": len(selftest["checks"]),
        "own_scripts": _own_scripts(hashes),
        "head": chain["head"],
        "later_entries": _later(folder, chain, heads),
        "unverified": [] if expected else [*_unverified(heads, signed), *recompute.unverified(folder)],
    }


def _later(folder: Path, chain: Fields, heads: Mapping[str, int] | None) -> int | None:
    """Return the number of ledger entries after the head of the bundle; None if no heads were given."""
    if heads is None:
        return None
    if chain["head"] not in heads:
        raise _wrong(folder, f"has a hash chain with the head {chain['head']}, which the ledger does not contain")
    return heads[chain["head"]]


def _unverified(heads: Mapping[str, int] | None, signed: str | None) -> Iterator[str]:
    """Yield a sentence for each fact that is not established without the curator's key."""
    if heads is None:
        yield ("who made the bundle: a consistent change of all files passes this check; compare the bundle with the "
               "curator's ledger (--ledger) or the curator's key (--public-key)")  # fmt: skip
    else:
        yield ("draws, self-test, versions and hashes of answers: the ledger's head covers only charges, caps, privacy "
               "units, job, domains, plan and the costs and bounds of parts; the curator's key (--public-key) covers "
               "all files")  # fmt: skip
    if signed is not None:
        yield "whose key signed it: give the expected key with --public-key"


def _own_scripts(hashes: Mapping[str, str]) -> bool:
    """Return whether the scripts are those of this version."""
    installed = {name: files("dpscale.audit.evidence").joinpath(name).read_bytes() for name in SCRIPTS}
    return all(hashes[name] == hashlib.sha256(script).hexdigest() for name, script in installed.items())


def _hashes(folder: Path, expected: str | None) -> tuple[dict[str, str], str | None]:
    """Return the hash of every file and the fingerprint of the signing key, after checking that there are no others.

    The envelope has the hash of every other file, so a missing or an additional file is a fault too. `expected` is the
    public key that must have signed it, or None.
    """
    if links := sorted(path.name for path in folder.iterdir() if path.is_symlink() or not path.is_file()):
        raise _wrong(folder, f"contains {links[0]!r}, which is a link or no file")
    try:
        hashes, public = opened((folder / ENVELOPE).read_bytes())
    except FileNotFoundError:
        raise _wrong(folder, f"lacks {ENVELOPE!r}") from None
    except (ValueError, KeyError, TypeError) as error:
        text = str(error) if type(error) is ValueError else f"is malformed ({type(error).__name__})"
        raise _wrong(folder, text) from None

    # the files here must be those in the envelope, and all that a bundle needs
    there = {path.name for path in folder.iterdir()} - {ENVELOPE}
    if odd := sorted(there.symmetric_difference(hashes)):
        lacks = f"contains {odd[0]!r}, which is not in {ENVELOPE}" if odd[0] in there else f"lacks {odd[0]!r}"
        raise _wrong(folder, lacks)
    if lacking := sorted(set(NEEDED).difference(hashes)):
        raise _wrong(folder, f"lacks {lacking[0]!r}")
    # only now are contents compared, then the format, and last the names of other files
    for name, digest in hashes.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise _wrong(folder, f"contains {name!r} with a hash other than in {ENVELOPE}")
    if recompute.read(folder, "versions.json")["format"] != FORMAT:
        raise _wrong(folder, "has a format that this version cannot read")
    known = {*NEEDED, "README.md", "optimality.json"}
    others = set(hashes) - known
    if unknown := sorted(name for name in others if not (name.startswith("domain.") and name.endswith(".toml"))):
        raise _wrong(folder, f"contains {unknown[0]!r}, which is no file of a bundle")
    _check_signer(folder, public, expected)
    return hashes, None if public is None else fingerprint(public)


def _check_signer(folder: Path, public: str | None, expected: str | None) -> None:
    """Raise JobError for a bundle that another key signed than the expected one."""
    if expected is None:
        return
    if public is None:
        raise _wrong(folder, "is unsigned, but a public key was given")
    if public != expected:
        raise _wrong(folder, f"is signed by another key ({fingerprint(public)})")


def _wrong(folder: Path, got: str) -> JobError:
    return JobError("evidence", f"{folder} {got}", "an unmodified bundle", "ask the curator for the original")
