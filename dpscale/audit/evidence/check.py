"""Verification of a bundle on a machine without the data: hashes, signature, and costs recomputed from integers.

The module shares only the error classes with the packages that make a release: `recompute`, `crosscheck` and
`sensitivities` use only the standard library, and the installed copies are used, never the bundle's. A consistent
change of all files passes these checks: the result lists what remains unverified without the curator's public key or
the head of the ledger's hash chain.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpscale.audit.evidence import crosscheck, recompute, search_costs, sensitivities
from dpscale.audit.evidence.signing import ALGORITHM, fingerprint, public_key, verified
from dpscale.base.errors import JobError

HASHES, SIGNATURE = "hashes.json", "signature.json"
ALWAYS = ("recompute.py", "sensitivities.py", "crosscheck.py", "shapes.py")
SCRIPTS: dict[str, tuple[str, ...]] = {
    "dpscale-evidence/3": ALWAYS,
    "dpscale-evidence/4": (*ALWAYS, "search_costs.py"),
    "dpscale-evidence/5": (*ALWAYS, "period_costs.py"),
}
EXTRA = re.compile(r"(searches|units)(\.[\w-]+)?\.json|allocation\.json")  # of format 4
TIME = {"dpscale-evidence/5": "time.json"}  # files of some formats
NEEDED = ("draws.json", "strategies.json", "events.json", "ledger.json", "selftest.json", "checklist.json",
          "run-files.json", "versions.json", "job.toml")  # fmt: skip

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
    """
    try:
        return _found(folder, None if key is None else public_key(key), heads)
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(folder, f"is unreadable ({type(error).__name__})") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, LookupError, StopIteration) as error:
        raise _wrong(folder, f"is malformed ({type(error).__name__})") from None


def _found(folder: Path, expected: str | None, heads: Mapping[str, int] | None) -> Fields:
    hashes = _hashes(folder)
    signed = _signed(folder, hashes["public_key"], expected)
    searched = recompute.read(folder, "versions.json")["format"] == "dpscale-evidence/4"
    if faults := recompute.faults(folder) or (search_costs.faults(folder) if searched else []):
        raise _wrong(folder, f"is inconsistent: {faults[0]}")
    events, selftest = (recompute.read(folder, name) for name in ("events.json", "selftest.json"))
    components = sensitivities.components(recompute.read(folder, "draws.json"))
    strategies = recompute.read(folder, "strategies.json")
    chain, alone = recompute.read(folder, "ledger.json").get("chain"), _by_columns_alone(strategies)
    return {
        "sound": True,
        "signed_by": signed,
        "private": events["private"],
        "release": {name: events["release"][name] for name in ("name", "epsilon", "delta")},
        "dataset": {name: events["dataset"][name] for name in ("epsilon", "delta")},
        "components": [sensitivities.label(one) for one in components],
        "draws": sum(len(one["draws"]) for one in components),
        "by_columns_alone": alone,
        "selections": sum(int(selected["count"]) for one in components for selected in one["selections"]),
        "files": len(hashes["files"]),
        "selftest_passed": selftest["passed"] and all(one["passed"] for one in selftest["checks"]),
        "selftest_checks": len(selftest["checks"]),
        "own_scripts": _own_scripts(folder, hashes["files"]),
        "head": chain["head"] if chain else None,
        "later_entries": _later(folder, chain, heads),
        "unverified": []
        if expected
        else [*_unverified(heads, signed), *_stated(components), *_first(folder), *crosscheck.unverified(folder)],
    }


def _by_columns_alone(strategies: Fields) -> int:
    """Return the number of strategies that are represented only by the norms of their columns."""
    parts = [part for one in strategies["factors"].values() for part in (one, *one.get("levels", ()))]
    return sum("columns" in part for part in parts)


def _later(folder: Path, chain: Fields | None, heads: Mapping[str, int] | None) -> int | None:
    """Return the number of ledger entries after the head of the bundle; None if no heads were given."""
    if heads is None:
        return None
    if chain is None:
        raise _wrong(folder, "has no hash chain to compare with the ledger, because an older version wrote it")
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
               "units, domain and plan; the curator's key (--public-key) covers all files")  # fmt: skip
    if signed is not None:
        yield "whose key signed it: give the expected key with --public-key"


def _stated(components: Sequence[Fields]) -> Iterator[str]:
    """Yield a sentence for each component that states an additive δ."""
    yield from (f"the additive δ of {sensitivities.label(one)}, which draws.json states" for one in components
                if "delta" in one)  # fmt: skip


def _first(folder: Path) -> Iterator[str]:
    """Yield a sentence for a first measurement."""
    if (folder / "allocation.json").exists():
        yield ("the noise of the first measurement of tables and links: its files contain values without records, so it"
               " is that of its share of the budget")  # fmt: skip


def _own_scripts(folder: Path, hashes: Mapping[str, str]) -> bool:
    """Return whether the scripts are those of this version."""
    installed = {name: files("dpscale.audit.evidence").joinpath(name).read_bytes()
                 for name in SCRIPTS[recompute.read(folder, "versions.json")["format"]]}  # fmt: skip
    return all(hashes[name] == hashlib.sha256(script).hexdigest() for name, script in installed.items())


def _hashes(folder: Path) -> Fields:
    """Return hashes.json after checking that every file has its hash and that there are no other files."""
    hashes = _canonical(folder, HASHES)
    listed: Mapping[str, str] = hashes["files"]
    if links := sorted(path.name for path in folder.iterdir() if path.is_symlink() or not path.is_file()):
        raise _wrong(folder, f"contains {links[0]!r}, which is a link or no file")
    there = {path.name for path in folder.iterdir()} - {HASHES, SIGNATURE}
    if odd := sorted(there.symmetric_difference(listed)):
        raise _wrong(
            folder, f"contains {odd[0]!r}, which is not in {HASHES}" if odd[0] in there else f"lacks {odd[0]!r}"
        )
    form = recompute.read(folder, "versions.json")["format"] if "versions.json" in listed else ""
    needed = {*NEEDED, *SCRIPTS.get(form, ()), *({TIME[form]} if form in TIME else ())}
    if lacking := sorted(needed.difference(listed)):
        raise _wrong(folder, f"lacks {lacking[0]!r}")
    if form not in SCRIPTS:
        raise _wrong(folder, "has a format that this version cannot read")
    known = {*needed, "README.md"}
    known |= {name for name in listed if "search_costs.py" in SCRIPTS[form] and EXTRA.fullmatch(name)}
    if unknown := sorted(
        name for name in set(listed) - known if not (name.startswith("domain.") and name.endswith(".toml"))
    ):
        raise _wrong(folder, f"contains {unknown[0]!r}, which is no file of a bundle")
    for name, digest in listed.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise _wrong(folder, f"contains {name!r} with a hash other than in {HASHES}")
    return hashes


def _signed(folder: Path, public: str | None, expected: str | None) -> str | None:
    """Return the fingerprint of the signing key; None for an unsigned bundle."""
    signature = _canonical(folder, SIGNATURE) if (folder / SIGNATURE).exists() else None
    if (signature is None) != (public is None):
        raise _wrong(folder, f"{'lacks' if signature is None else 'has'} a signature, in contradiction to {HASHES}")
    if signature is None or public is None:
        if expected is not None:
            raise _wrong(folder, "is unsigned, but a public key was given")
        return None
    if signature.keys() != {"algorithm", "public_key", "signature"} or signature["algorithm"] != ALGORITHM:
        raise _wrong(folder, f"has a signature that is not {ALGORITHM}")
    if signature["public_key"] != public or not verified(
        public, signature["signature"], (folder / HASHES).read_bytes()
    ):
        raise _wrong(folder, "has a signature that does not match its hashes")
    if expected not in (None, public):
        raise _wrong(folder, f"is signed by another key ({fingerprint(public)})")
    return fingerprint(public)


def _canonical(folder: Path, name: str) -> Fields:
    """Return the value of a file that has no hash; its text must be canonical."""
    content = (folder / name).read_bytes()
    value = json.loads(content)
    if (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode() != content:
        raise _wrong(folder, f"contains {name!r} with a text that is not canonical")
    return dict(value)


def _wrong(folder: Path, got: str) -> JobError:
    return JobError("evidence", f"{folder} {got}", "an unmodified bundle", "ask the curator for the original")
