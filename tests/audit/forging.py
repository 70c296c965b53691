"""Forgeries of evidence bundles: edited copies with a new envelope, whose other files a forger makes agree."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.audit.evidence import envelope, recompute, sensitivities
from dpscale.runs.statement import canonical

Files = dict[str, Any]
Change = Callable[[Files], object]


def read(folder: Path, name: str) -> Any:
    return recompute.read(folder, f"{name}.json")


def read_all(folder: Path) -> Files:
    """Contents of all JSON and TOML files of a bundle, by names without ends."""
    files = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json") if path.name != "envelope.json"}
    return files | {path.name.removesuffix(".toml"): tomllib.loads(path.read_text()) for path in folder.glob("*.toml")}


def forge(folder: Path, place: Path, change: Change) -> Path:
    """Return a copy with edited files and a new envelope; `change` edits the contents by name."""
    copy = Path(shutil.copytree(folder, place))
    files = read_all(copy)
    before = json.dumps(files)
    change(files)
    assert json.dumps(files) != before, "a forgery that forges nothing"
    for name, content in files.items():
        former = json.loads(before).get(name)
        if content == former:
            continue  # a text that nothing changed keeps its bytes
        is_toml = name == "job" or name.startswith("domain")
        text = tomli_w.dumps(content).encode() if is_toml else canonical(content)
        (copy / f"{name}{'.toml' if is_toml else '.json'}").write_bytes(text)
    for gone in set(json.loads(before)) - set(files):
        next(path for path in (copy / f"{gone}.json", copy / f"{gone}.toml") if path.exists()).unlink()
    return reseal(copy)


def reseal(folder: Path, key: Any = None) -> Path:
    """Write the envelope of a changed bundle."""
    (folder / "envelope.json").unlink(missing_ok=True)
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "envelope.json").write_bytes(envelope.sealed(contents, key))
    return folder


def run_script(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a bundle without site packages."""
    command_line = [sys.executable, "-I", "-S", str(folder / "recompute.py")]
    return subprocess.run(command_line, capture_output=True, text=True, cwd="/")


# ---- the list of records ---------------------------------------------------------------------------------------------


def records_of(files: Files, part: str | None = None, entry: str | None = None) -> list[Files]:
    """Records of the values of a part; of all parts and entries by default."""
    return [one for one in files["records"]["records"] if "range" not in one and part in (None, one["part"])
            and entry in (None, one["entry"])]  # fmt: skip


def selections_of(files: Files, part: str | None = None) -> list[Files]:
    return [one for one in files["records"]["records"] if "range" in one and part in (None, one["part"])]


def remove(files: Files, gone: list[Files]) -> None:
    files["records"]["records"] = [one for one in files["records"]["records"] if not any(one is own for own in gone)]


def scale_noise(record: Files, factor: float | Fraction) -> None:
    """Multiply the variance, or the scale of Laplace noise by the root of the factor."""
    if "laplace" in record:
        record["laplace"] = str(int(int(record["laplace"]) * float(factor) ** 0.5))
    else:
        record["variance"] = str(int((int(record["variance"]) - 8) * factor) + 8)


def restate(files: Files) -> None:
    """State sensitivities, costs and answers that follow from the edited records and parts."""
    factors, parts = files["strategies"]["factors"], files["parts"]
    norms = {name: sensitivities.norms(one) for name, one in factors.items()}
    for one in records_of(files):
        squared, absolute = map(max, sensitivities.sensitivities(one, parts[one["part"]], norms))
        cost = sensitivities.noise_cost(one, squared, absolute)
        one |= {"squared_l2": str(squared), "l1": str(absolute), "cost": str(cost)}
    restate_answers(files)


def restate_answers(files: Files) -> None:
    """State the answers that follow from the edited files."""
    from dpscale.audit.evidence.checklist import answers

    files["checklist"] = answers(files)


# ---- the ledger ------------------------------------------------------------------------------------------------------


def rechain(files: Files) -> None:
    """Forge the sealed hashes of the release and the links of the hash chain."""
    chain, rows, before = files["ledger"]["chain"], {"releases": list(files["ledger"]["releases"]), "caps": []}, ""
    if files["ledger"].get("cap"):
        rows["caps"] = [*files["ledger"]["former_caps"], files["ledger"]["cap"]]
    names = [None, *(row["release"] for row in rows["releases"])]
    chain["entries"] = [link for link in chain["entries"] if link["shown"].get("release") in names]
    plan = [f"{name}\0{one}\n" for name, one in sorted(files["run-files"].items()) if name.startswith("plan/")]
    texts = {name: tomli_w.dumps(files[name]).encode() for name in files if name == "job" or name.startswith("domain")}
    texts |= {"parts": canonical(files["parts"]), "plan": "".join(plan).encode()}
    opened = chain["opened"]["facts"]
    opened |= {name: hashlib.sha256(texts[name]).hexdigest() for name in opened if name in texts}
    for link in chain["entries"]:
        if link["entry"] in rows:
            row = rows[link["entry"]].pop(0)
            shown = {name: int(row[name]) if name == "public" else row.get(name) for name in link["shown"]}
            if isinstance(link["shown"].get("periods"), str):
                shown["periods"] = json.dumps(row["periods"])
            link["shown"] = shown | ({"cost": json.dumps(row["cost"], sort_keys=True)} if "cost" in row else {})
        if link["shown"].get("release") == files["records"]["release"] and link["entry"] == "releases":
            link["facts"] = recompute.chained([chain["opened"]["key"], opened])
        before = recompute.chained([before, *(link[name] for name in ("entry", "shown", "hidden", "facts"))])
    chain["head"] = before


def consistently(change: Change) -> Change:
    """Return a change followed by a forged hash chain."""

    def change_and_rechain(files: Files) -> None:
        change(files)
        rechain(files)

    return change_and_rechain
