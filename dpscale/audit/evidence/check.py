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
SCRIPTS = {
    "dpscale-evidence/1": ("recompute.py", "sensitivities.py"),
    "dpscale-evidence/2": ("recompute.py", "sensitivities.py", "crosscheck.py", "shapes.py"),
    "dpscale-evidence/3": ("recompute.py", "sensitivities.py", "crosscheck.py", "shapes.py"),
}
SCRIPTS["dpscale-evidence/4"] = (*SCRIPTS["dpscale-evidence/3"], "search_costs.py")
SCRIPTS["dpscale-evidence/5"] = (*SCRIPTS["dpscale-evidence/3"], "period_costs.py")
SHIPPED: dict[str, tuple[tuple[str, ...], ...]] = {  # SHA-256 of the SCRIPTS of every older version, by format
    "dpscale-evidence/1": (
        ("515c31416bd0f3a26bf8613d687161cc943d52fdfa4a6780b309ceaa2cb664cf",
         "51aa7654cf8daa4744e46f76d174a56a60a73a18e40c7b6fd13b37d0e534d260"),
    ),
    "dpscale-evidence/2": (
        ("38055bf311e6ec91ec6b5e7bbddb8ddd40b3072d0dd0ed3040399c010a98bb44",
         "51aa7654cf8daa4744e46f76d174a56a60a73a18e40c7b6fd13b37d0e534d260",
         "04caf06dfce8736052af83ef2a8f7b81717988ef0fbb8c6dfea2a7c36baaff87",
         "d3b4157cafdcc9909bd4772f7468c9fb1b45f77644f60561ff2cf36a197edca4"),
        ("99be4d2a9dbef88ae7fc49b48d7b91bcc56b2ba823afc8c0f0ef01dc96a219c0",
         "51aa7654cf8daa4744e46f76d174a56a60a73a18e40c7b6fd13b37d0e534d260",
         "04caf06dfce8736052af83ef2a8f7b81717988ef0fbb8c6dfea2a7c36baaff87",
         "d3b4157cafdcc9909bd4772f7468c9fb1b45f77644f60561ff2cf36a197edca4"),
        ("941e6327f3b7e14fc72f571a570b9ff1f42b28250d464bbeaa400dccf219e241",
         "51aa7654cf8daa4744e46f76d174a56a60a73a18e40c7b6fd13b37d0e534d260",
         "a54e11c0ea4614403d35051f2dc42c248506cf4c19d2287a57e51f62f9f764d8",
         "d3b4157cafdcc9909bd4772f7468c9fb1b45f77644f60561ff2cf36a197edca4"),
        ("e50653b98a57dc5ee59dac13040d2282e9607fddce95b64d860a83b024eada42",
         "51aa7654cf8daa4744e46f76d174a56a60a73a18e40c7b6fd13b37d0e534d260",
         "a54e11c0ea4614403d35051f2dc42c248506cf4c19d2287a57e51f62f9f764d8",
         "d3b4157cafdcc9909bd4772f7468c9fb1b45f77644f60561ff2cf36a197edca4"),
        ("31f82bf2bf4ad75dc0838f5cc7a70ec0dec38c1236776625068287c13c48ca23",
         "c5463a14a50467e7b297de1916ca1f046a3053fb5bdb4026e2e7d78a9b7f4993",
         "360bbe784b03778b95a1003481040404cef734030b488eed98826fc347c01aad",
         "cd6ee90b3090f306755f86f5b5a58231cde25d02662b663881a54bfada68ab3b"),
    ),
    "dpscale-evidence/3": (
        ("e8a1a823ae751a1e5c8f33700fbf1e5beef20b05acfd9997e00982f21ccd4bf9",
         "080d358ed76d7fa43ef442d369e059fb300b55d4dc1e0c942b14c23763aa2b2a",
         "cc849c77c0a4284da331d6358cdc97890b5fa6e3ea6ddc92537957b2d24dc4e4",
         "366b8c3f063d0ba7a4fb5138bf13e37e12d5f6d1618de331862d08d5c59d6923"),
        ("73ca3f1463c40d61d0aa4c49dc3d3ea522bd8a79734bbf1971a5206e2acb05fc",
         "6ef9cce46645cbc704bdb79a258b84dc81381490ee0f0eadb62ae51b3c1747fb",
         "d23a00d56bb5827391970cf7fdaa29cf080ee914881310093e86d65e68e7a9c4",
         "366b8c3f063d0ba7a4fb5138bf13e37e12d5f6d1618de331862d08d5c59d6923"),
        ("73ca3f1463c40d61d0aa4c49dc3d3ea522bd8a79734bbf1971a5206e2acb05fc",
         "6ef9cce46645cbc704bdb79a258b84dc81381490ee0f0eadb62ae51b3c1747fb",
         "f02adec785dcecffa305b5c24f8631b3852a027be4180f880da3601ec9b51bae",
         "709e981157f16a3aecd84c182d79f733af8f5055d1832bcb74ad509dbc4d7c98"),
        ("73ca3f1463c40d61d0aa4c49dc3d3ea522bd8a79734bbf1971a5206e2acb05fc",
         "6ef9cce46645cbc704bdb79a258b84dc81381490ee0f0eadb62ae51b3c1747fb",
         "73462be50b102cff84c88425ea9a0f481fbffa10f50a62dac3d99a2760318281",
         "709e981157f16a3aecd84c182d79f733af8f5055d1832bcb74ad509dbc4d7c98"),
        ("73ca3f1463c40d61d0aa4c49dc3d3ea522bd8a79734bbf1971a5206e2acb05fc",
         "2abf932c8953b5a1d9bbb294680e07807d43a1232f44747116191a52a22f0dd2",
         "c7a494ff070a0353798dadfca08d65569bf7f3e6eb548e100cf37f1ca6da8f5d",
         "649dbda534260918536d04fb97ffd41871ae8ab5f1574e6701ddaed939da8d4f"),
        ("b2883a8e0d522d758a839f9851803fb52af90608813e5435012cdab3520825ca",
         "2abf932c8953b5a1d9bbb294680e07807d43a1232f44747116191a52a22f0dd2",
         "90ecb16560ceee8a2b23826061ad11b4da7ba8c69c13838b8e4f21de4e09dc04",
         "8746be7b9c8794692c143f3fc84b5520b6635c671d51e0cdf91ca53f9d4e8990"),
        ("0e0210c736ac8010a658512c297290a45fca04cae8eaa47ae3c5b7f194fcd467",
         "50dc2b6580484226fc3b61ab258926374b9289979b4beeeb573360c42bfdaf27",
         "f32724a4f1c616b63471a38071f26edce838fdd79fd0b32f598bf9fc57d57d91",
         "c16c169b5d32553dc85884999082a9267e8ccafa03ce9e98ea21e30cbb7dcec2"),
        ("0e0210c736ac8010a658512c297290a45fca04cae8eaa47ae3c5b7f194fcd467",
         "50dc2b6580484226fc3b61ab258926374b9289979b4beeeb573360c42bfdaf27",
         "f32724a4f1c616b63471a38071f26edce838fdd79fd0b32f598bf9fc57d57d91",
         "611a8434f46dfabf5713ca6ac27a87fc8844892ae62b2665eeca8d5867e54def"),
    ),
    "dpscale-evidence/4": (
        ("73ca3f1463c40d61d0aa4c49dc3d3ea522bd8a79734bbf1971a5206e2acb05fc",
         "6ef9cce46645cbc704bdb79a258b84dc81381490ee0f0eadb62ae51b3c1747fb",
         "73462be50b102cff84c88425ea9a0f481fbffa10f50a62dac3d99a2760318281",
         "709e981157f16a3aecd84c182d79f733af8f5055d1832bcb74ad509dbc4d7c98",
         "f2ddc10499043a375865fe352c4c2da0d5407d6324f3de8b87de524c1612c4c2"),
        ("73ca3f1463c40d61d0aa4c49dc3d3ea522bd8a79734bbf1971a5206e2acb05fc",
         "6ef9cce46645cbc704bdb79a258b84dc81381490ee0f0eadb62ae51b3c1747fb",
         "e0ef4802de65d7681f2dcda4606e00feb0191dcb0099883f6692d24da6091926",
         "9f290eb643f167b61d97d6c8d823e2ac80d23090bcd9823d3ca401901ab427b4",
         "04d95153eef88a782224ab7200f077f60aef22c0ee6371f75e030d48e75c32af"),
        ("73ca3f1463c40d61d0aa4c49dc3d3ea522bd8a79734bbf1971a5206e2acb05fc",
         "2abf932c8953b5a1d9bbb294680e07807d43a1232f44747116191a52a22f0dd2",
         "c7a494ff070a0353798dadfca08d65569bf7f3e6eb548e100cf37f1ca6da8f5d",
         "649dbda534260918536d04fb97ffd41871ae8ab5f1574e6701ddaed939da8d4f",
         "04d95153eef88a782224ab7200f077f60aef22c0ee6371f75e030d48e75c32af"),
        ("b2883a8e0d522d758a839f9851803fb52af90608813e5435012cdab3520825ca",
         "2abf932c8953b5a1d9bbb294680e07807d43a1232f44747116191a52a22f0dd2",
         "90ecb16560ceee8a2b23826061ad11b4da7ba8c69c13838b8e4f21de4e09dc04",
         "8746be7b9c8794692c143f3fc84b5520b6635c671d51e0cdf91ca53f9d4e8990",
         "6e3cf348f3a073a26e892f647e6ab7cf3ef5c83e77697d6a78578c0eea9f932c"),
        ("0e0210c736ac8010a658512c297290a45fca04cae8eaa47ae3c5b7f194fcd467",
         "50dc2b6580484226fc3b61ab258926374b9289979b4beeeb573360c42bfdaf27",
         "f32724a4f1c616b63471a38071f26edce838fdd79fd0b32f598bf9fc57d57d91",
         "c16c169b5d32553dc85884999082a9267e8ccafa03ce9e98ea21e30cbb7dcec2",
         "fc8488f62d6728906180cb42363d95c6472549b95d1c118d240eee0e23b30610"),
        ("0e0210c736ac8010a658512c297290a45fca04cae8eaa47ae3c5b7f194fcd467",
         "50dc2b6580484226fc3b61ab258926374b9289979b4beeeb573360c42bfdaf27",
         "f32724a4f1c616b63471a38071f26edce838fdd79fd0b32f598bf9fc57d57d91",
         "611a8434f46dfabf5713ca6ac27a87fc8844892ae62b2665eeca8d5867e54def",
         "679eae8840e3ee57f58f159f9648d0ddd39d69bdd86fab22de7dd8db95ebec74"),
    ),
    "dpscale-evidence/5": (
        ("b2883a8e0d522d758a839f9851803fb52af90608813e5435012cdab3520825ca",
         "2abf932c8953b5a1d9bbb294680e07807d43a1232f44747116191a52a22f0dd2",
         "90ecb16560ceee8a2b23826061ad11b4da7ba8c69c13838b8e4f21de4e09dc04",
         "8746be7b9c8794692c143f3fc84b5520b6635c671d51e0cdf91ca53f9d4e8990",
         "dbcef56eee0f9cb3fc711dba1dedd1a64e2febcf4241d1a48dcd7e4cb743ab55"),
        ("0e0210c736ac8010a658512c297290a45fca04cae8eaa47ae3c5b7f194fcd467",
         "50dc2b6580484226fc3b61ab258926374b9289979b4beeeb573360c42bfdaf27",
         "f32724a4f1c616b63471a38071f26edce838fdd79fd0b32f598bf9fc57d57d91",
         "c16c169b5d32553dc85884999082a9267e8ccafa03ce9e98ea21e30cbb7dcec2",
         "dbcef56eee0f9cb3fc711dba1dedd1a64e2febcf4241d1a48dcd7e4cb743ab55"),
        ("0e0210c736ac8010a658512c297290a45fca04cae8eaa47ae3c5b7f194fcd467",
         "50dc2b6580484226fc3b61ab258926374b9289979b4beeeb573360c42bfdaf27",
         "f32724a4f1c616b63471a38071f26edce838fdd79fd0b32f598bf9fc57d57d91",
         "611a8434f46dfabf5713ca6ac27a87fc8844892ae62b2665eeca8d5867e54def",
         "dbcef56eee0f9cb3fc711dba1dedd1a64e2febcf4241d1a48dcd7e4cb743ab55"),
    ),
}  # fmt: skip
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
    """Return whether the scripts are those of this version, or those that an older version shipped with the format."""
    form = recompute.read(folder, "versions.json")["format"]
    digests = tuple(hashes[name] for name in SCRIPTS[form])
    installed = [files("dpscale.audit.evidence").joinpath(name).read_bytes() for name in SCRIPTS[form]]
    return digests in SHIPPED[form] or digests == tuple(hashlib.sha256(script).hexdigest() for script in installed)


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
