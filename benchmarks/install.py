"""Distributions, download and disk of `pip install .`, alone and with extras, each in a new virtual environment.

    python benchmarks/install.py [--save]

Sizes are in MB of 10^6 bytes; those on disk include the compiled modules that pip writes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import Distribution, distributions
from pathlib import Path

from base import save, table

ROOT = Path(__file__).parents[1]
EXTRAS = ("", "plot", "regression", "certify", "evidence", "compare")
LARGE = (
    "pyarrow",
    "llvmlite",
    "scipy",
    "numpy",
    "pandas",
    "numba",
    "dask",
    "distributed",
    "cryptography",
    "pydantic_core",
)
MB = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    figures: dict[str, float | str] = {}

    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        wheel = build_wheel(Path(place))
        for extra in EXTRAS:
            figures |= measure(wheel, extra, Path(place) / (extra or "alone"))
    rows = [[key, f"{value:.1f}"] for key, value in figures.items() if isinstance(value, float)]
    print(table(("figure", "value"), *rows))
    if given.save:
        save("install", figures)


def build_wheel(place: Path) -> Path:
    """Return the wheel of the last commit."""
    (place / "source").mkdir()
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", place / "source"], input=packed, check=True)
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", place, place / "source")
    [wheel] = place.glob("dpscale-*.whl")
    return wheel


def measure(wheel: Path, extra: str, place: Path) -> dict[str, float | str]:
    """Install the wheel with an extra into a new environment; return its figures, with those of its parts if alone."""
    venv.create(place / "venv", with_pip=True)
    python, wheels = str(place / "venv" / "bin" / "python"), place / "wheels"
    [libraries] = (place / "venv").glob("lib/*/site-packages")
    before = {one.name for one in distributions(path=[str(libraries)])}
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    pip(python, "wheel", "--wheel-dir", wheels, wanted)
    pip(python, "install", "--no-index", "--find-links", wheels, wanted)

    installed = [one for one in distributions(path=[str(libraries)]) if one.name not in before]
    label = extra or "alone"
    figures: dict[str, float | str] = {
        f"{label}, distributions": float(len(installed)),
        f"{label}, MB of download": sum(one.stat().st_size for one in wheels.iterdir()) / MB,
        f"{label}, MB on disk": sum(map(size, installed)) / MB,
    }
    if not extra:
        figures |= {f"MB of {one.name}": size(one) / MB for one in installed if one.name.replace("-", "_") in LARGE}
    return figures


def size(installed: Distribution) -> int:
    """Return the bytes of the files of a distribution."""
    files = (Path(str(one.locate())) for one in installed.files or ())
    return sum(one.stat().st_size for one in files if one.is_file())


def pip(python: str, *arguments: object) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
