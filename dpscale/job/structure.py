"""Public files of Bayesian networks in a job, which become the families of their networks when the job is read.

The content of a job, its digest and its runs therefore have the structure itself: another file of the same structure is
the same job, and a changed structure is another job. Probabilities and states of a file are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpscale.base.errors import DpscaleError, JobError
from dpscale.storage.files import place, read_bytes
from dpscale.storage.objects import located

MECHANISM, PRIOR, SUFFIX = "mechanism", "prior", ".bif"


def with_structures(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a job with families in place of network files; relative paths start at `folder`.

    Raises
    ------
    JobError
        If a file cannot be read, or pgmpy is missing.
    """
    read = dict(content)
    for key, value in content.items():
        if not isinstance(value, Mapping):
            continue
        read[key] = with_structures(value, folder)
        prior = value.get(PRIOR)
        if key == MECHANISM and isinstance(prior, str):
            read[key][PRIOR] = families_of_file(located(folder, prior))
    return read


def families_of_file(file: str) -> list[list[str]]:
    """Return the families of a network file: every variable with its parents, in the order of the file.

    Raises
    ------
    JobError
        If the file cannot be read, or pgmpy is missing.
    """
    if not file.endswith(SUFFIX):
        raise _unreadable(file, f"a file that does not end in {SUFFIX}")
    try:
        text = read_bytes(place(file, PRIOR)).decode()
    except (OSError, UnicodeDecodeError, DpscaleError) as error:
        raise _unreadable(file, f"a file that cannot be read ({type(error).__name__})") from None
    try:
        from pgmpy.readwrite import BIFReader
    except ImportError:
        raise JobError(f"{MECHANISM}.{PRIOR}", "pgmpy is not installed", "pgmpy 1.0 or later, or a list of families",
                       "pip install 'dpscale[graphical]'") from None  # fmt: skip
    try:
        read = BIFReader(string=text)
        families = [[name, *read.variable_parents[name]] for name in read.variable_names]
    except Exception as error:  # the parser has no error class of its own
        raise _unreadable(file, f"a file that pgmpy does not read ({type(error).__name__})") from None
    if not families:
        raise _unreadable(file, "a file without a variable")
    return families


def _unreadable(file: str, got: str) -> JobError:
    return JobError(f"{MECHANISM}.{PRIOR}", f"{Path(file).name}: {got}", "a network in the Bayesian Interchange Format",
                    "check the file")  # fmt: skip
