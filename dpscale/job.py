"""The job file: read, checked, and turned into a domain, a workload and a privacy cost."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dpscale.domain import Domain
from dpscale.errors import JobError
from dpscale.names import nearest
from dpscale.plans.allocation import GAUSSIAN, LAPLACE
from dpscale.storage.files import is_local, place, read_text
from dpscale.workload import NAMES, Workload

MEMORY = re.compile(r"^\s*([0-9.]+)\s*([kKMGT]?i?B)\s*$")
UNITS = {
    "B": 1,
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
}
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(_Section):
    """Where the records are and what one privacy unit is."""

    path: str
    domain: str
    privacy_unit: str | None = None
    max_rows_per_unit: Annotated[int, Field(ge=1)] | None = None
    snapshot: Literal["content", "footers"] = "content"

    @model_validator(mode="after")
    def _both(self) -> Data:
        if (self.privacy_unit is None) != (self.max_rows_per_unit is None):
            raise ValueError("privacy_unit and max_rows_per_unit go together")
        return self


class Privacy(_Section):
    """The budget: epsilon and delta, or rho, or privacy_cost; and the ledger that remembers it."""

    epsilon: Positive | None = None
    delta: Share | None = None
    rho: Positive | None = None
    privacy_cost: Positive | None = None
    ledger: str = "ledger.sqlite"
    dataset: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Privacy:
        given = [name for name in ("epsilon", "rho", "privacy_cost") if getattr(self, name) is not None]
        if len(given) != 1 or (self.delta is not None and self.epsilon is None):
            raise ValueError("give epsilon with delta, or epsilon alone (pure), or rho, or privacy_cost")
        return self

    @property
    def noise(self) -> str:
        """Laplace for pure differential privacy (epsilon alone), else Gaussian."""
        return LAPLACE if self.epsilon is not None and self.delta is None else GAUSSIAN

    @property
    def budget(self) -> float:
        """What the draws may come to: squared Gaussian-DP μ, or ε of pure differential privacy."""
        from dpscale.privacy.accounting import gdp_mu

        if self.epsilon is not None:
            pure = self.delta is None
            return self.epsilon if pure else gdp_mu(self.epsilon, self.delta or 0.0) ** 2 * (1 - 1e-15)
        return 2 * self.rho if self.rho is not None else float(self.privacy_cost or 0)

    @property
    def zcdp(self) -> Fraction:
        """The same as ρ of zCDP, for mechanisms that choose as they go: not every one of their steps is Gaussian."""
        from dpscale.privacy.conversion import zcdp_rho

        if self.epsilon is not None:
            return Fraction(zcdp_rho(self.epsilon, self.delta or 0.0) * (1 - 1e-15))
        return Fraction(self.rho) if self.rho is not None else Fraction(self.privacy_cost or 0) / 2

    @property
    def cost(self) -> float:
        """What a plan's errors are divided by: squared Gaussian-DP μ, or ε²."""
        return self.budget**2 if self.noise == LAPLACE else self.budget


class Part(_Section):
    """One family of queries over attribute sets."""

    family: str
    degree: int | None = None
    attributes: list[list[str]] | None = None
    weight: Weight | list[Weight | list[Any]] = 1.0
    file: str | None = None
    p: float | None = None
    seed: int | None = None
    numeric: list[str] | None = None


class Mechanism(_Section):
    """The mechanism and its own options, which it checks itself."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = "query-smasher"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Reconstruct(_Section):
    """How estimates are made. auto: least squares for matrix mechanisms; for adaptive ones as `published` says.

    errors: exact ones by least squares, else none unless simulated. agree: targets' common margins are made equal.
    """

    method: Literal["auto", "least-squares", "grem", "maxent"] = "auto"
    errors: Literal["auto", "simulated"] = "auto"
    agree: bool = False


class EngineSettings(_Section):
    """Where tasks run and how much memory they may hold. A seed marks the run as not private."""

    scheduler: str | None = None
    memory: str = "4GiB"
    seed: int | None = None

    @field_validator("memory")
    @classmethod
    def _memory(cls, value: str) -> str:
        if not MEMORY.match(value):
            raise ValueError("write a size, such as 4GiB")
        return value

    @property
    def bytes(self) -> int:
        number, unit = MEMORY.match(self.memory).groups()  # type: ignore[union-attr]
        return int(float(number) * UNITS[unit[0].upper() + unit[1:]])


class Output(_Section):
    """Sets with more queries than this in one family get no file: the Release answers them on demand."""

    max_rows: Annotated[int, Field(ge=0)] = 10_000_000


class Job(_Section):
    """A whole job. Paths are absolute once read."""

    data: Data
    privacy: Privacy
    workload: Annotated[list[Part], Field(min_length=1)]
    mechanism: Mechanism = Mechanism()
    reconstruct: Reconstruct = Reconstruct()
    engine: EngineSettings = EngineSettings()
    output: Output = Output()

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any]) -> Job:
        """Read a job file, or take its content as a dict (paths relative to the present folder)."""
        if isinstance(source, Mapping):
            return cls.parse(source, Path.cwd())
        path = place(source)
        try:
            content = tomllib.loads(read_text(path))
        except OSError as error:
            reason = error.strerror or "unreadable"
            raise JobError("job", f"cannot read {path} ({reason})", "a job file", "check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise JobError("job", f"{path} is not TOML ({error})", "a job file", "mend the syntax") from None
        return cls.parse(content, (path.resolve() if is_local(path) else path).parent)

    @classmethod
    def parse(cls, content: Mapping[str, Any], folder: Path) -> Job:
        """Check the content; relative paths start at `folder`."""
        try:
            job = cls.model_validate(dict(content))
        except ValidationError as error:
            raise _sentence(error) from None
        return job._resolved(folder)

    @property
    def dataset(self) -> str:
        """The name under which the ledger keeps this data."""
        return self.privacy.dataset or self.data.path

    def read_domain(self) -> Domain:
        return Domain.read(self.data.domain)

    def build_workload(self, domain: Domain) -> Workload:
        """The workload over a domain."""
        workload = Workload(domain)
        for part in self.workload:
            _add(workload, part)
        return workload

    def to_dict(self) -> dict[str, Any]:
        """The job as the content of a job file."""
        return self.model_dump(exclude_none=True, exclude_defaults=False)

    def _resolved(self, folder: Path) -> Job:
        data = self.data.model_copy(
            update={"path": _absolute(folder, self.data.path), "domain": _absolute(folder, self.data.domain)}
        )
        privacy = self.privacy.model_copy(update={"ledger": _absolute(folder, self.privacy.ledger)})
        parts = [
            part if part.file is None else part.model_copy(update={"file": _absolute(folder, part.file)})
            for part in self.workload
        ]
        return self.model_copy(update={"data": data, "privacy": privacy, "workload": parts})


def _absolute(folder: Path, path: str) -> str:
    return os.path.normpath(os.path.join(str(folder), path))  # absolute in a run directory, so also in a store


def _add(workload: Workload, part: Part) -> None:
    if part.family == "predicates":
        _add_predicates(workload, part)
        return
    if part.family not in NAMES:
        known = [*NAMES, "predicates"]
        raise JobError("workload.family", f"{part.family!r}", ", ".join(known), nearest(part.family, known))
    if part.file is not None:
        raise JobError("workload.file", f"given for family {part.family!r}", "family predicates only", "remove it")
    workload.add(part.family, part.degree, part.attributes, part.weight, part.p, part.seed, part.numeric)


def _add_predicates(workload: Workload, part: Part) -> None:
    """Queries from a .npy file of shape (m, n_a, n_b, …), over one attribute set."""
    if part.file is None or part.attributes is None or len(part.attributes) != 1 or part.degree is not None:
        raise JobError("workload", "predicates without its settings", "file and attributes = [[one set]]", "add them")
    try:
        queries = np.load(part.file, allow_pickle=False)
    except (OSError, ValueError):
        raise JobError(
            "workload.file", f"{part.file} cannot be read", "an array file (.npy)", "save it by numpy"
        ) from None
    each = part.weight if isinstance(part.weight, list) else np.full(len(queries), part.weight)
    workload.add_queries(part.attributes[0], queries, each)


def _sentence(error: ValidationError) -> JobError:
    """The first fault of a job as one sentence."""
    fault = error.errors()[0]
    named = [str(part) for part in fault["loc"] if "[" not in str(part) and "constrained" not in str(part)]
    where = ".".join(named) or "job"
    if fault["type"] == "extra_forbidden":
        known = _keys(fault["loc"][:-1])
        return JobError(where, "unknown key", ", ".join(known), nearest(str(fault["loc"][-1]), known))
    if fault["type"] == "missing":
        return JobError(where, "missing", "a value", "add it to the job file")
    got = "" if isinstance(fault["input"], Mapping) else f"{fault['input']!r}: "
    message = fault["msg"].removeprefix("Value error, ")
    return JobError(where, f"{got}{message[0].lower()}{message[1:]}", "", "see the job file in docs/jobs.md")


def _keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Job
    for part in location:
        if isinstance(part, str):
            model = {
                "data": Data,
                "privacy": Privacy,
                "workload": Part,
                "mechanism": Mechanism,
                "reconstruct": Reconstruct,
                "engine": EngineSettings,
                "output": Output,
            }[part]
    return sorted(model.model_fields)
