"""Settings of dpscale in Dask's configuration, with the defaults of `dpscale.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from dpscale.base.display import display_path
from dpscale.base.errors import JobError

SECTION, REPORT = "dpscale", "performance-report"
TIME = "seconds, or a number and a unit such as 90s, 30m or 1h"


@cache
def _defaults() -> dict[str, Any]:
    """Return the defaults, which Dask's configuration has from then on."""
    from dask import config

    stated: dict[str, dict[str, Any]]
    [stated] = config.collect_yaml([str(Path(__file__).with_name("dpscale.yaml"))])
    config.update_defaults(stated)
    return stated[SECTION]


def setting_name(name: str) -> str:
    """Return the name of a setting in Dask's configuration."""
    return ".".join((SECTION, name))


def configured(name: str) -> Any:
    """Return the value of `dpscale.NAME`."""
    from dask import config

    default = _defaults()[name]  # also after the end of a `config.set` in which they were added
    return config.get(name, default, config=config.get(SECTION, {}))


def configured_seconds(name: str) -> float:
    """Return a time in seconds. Raises JobError for another value."""
    from dask.utils import parse_timedelta

    value = configured(name)
    try:
        return float(parse_timedelta(value))
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError):  # depending on the value
        refuse(name, value, TIME)


def configured_number(name: str) -> float:
    """Return a positive number. Raises JobError for another value."""
    value = configured(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        refuse(name, value, "a positive number")
    return value


def use_report(file: str) -> None:
    """Ask for the performance report of the runs of this process. Raises JobError if the folder does not exist."""
    from dask import config

    if not Path(file).resolve().parent.is_dir():
        raise JobError("--performance-report", f"{display_path(file)}, whose folder does not exist", "a new file",
                       "create the folder")  # fmt: skip
    config.set({setting_name(REPORT): file})


def refuse(name: str, value: object, takes: str) -> NoReturn:
    """Raise the error of a value that cannot be used."""
    raise JobError(setting_name(name), f"{value!r} in Dask's configuration", takes, "fix it") from None
