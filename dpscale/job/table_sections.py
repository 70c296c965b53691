"""Sections of a job of several tables: `[tables.NAME]`, `[[link]]` and `[synthesize]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, field_validator, model_validator

from dpscale.base.settings import Settings
from dpscale.domain import Domain
from dpscale.job.data import Address, Key, UnitSettings, key_columns
from dpscale.job.sections import (
    DiscoverTable,
    MechanismTable,
    Named,
    Output,
    Privacy,
    ReconstructTable,
    SynthesizeTable,
    TotalsTable,
    UnitsTable,
    WorkloadSection,
)
from dpscale.mechanisms import DEFAULT_OF_LINKED
from dpscale.privacy.accounting import Budget
from dpscale.relational.published import Rounds
from dpscale.storage.objects import located

Share = Annotated[float, Field(gt=0, le=1)]
KINDS = Literal["many-to-many", "one-to-many", "one-to-one"]
MOST_DEGREE, MOST_ROUNDS = 10, 1000


class TableSection(UnitSettings, Named):
    """Section of a table: its data, key and share of the budget, and the sections of a job of one table.

    `mechanism` is a name, whose options are other keys of this section, or a section with the name and its options.
    """

    key: Key | None = None
    public: bool = False
    public_attributes: list[str] | None = None  # None: omitted from the digest of a job
    mechanism: str | MechanismTable = DEFAULT_OF_LINKED
    reconstruct: ReconstructTable | None = None
    synthesize: SynthesizeTable | None = None
    output: Output | None = None
    discover: DiscoverTable | None = None
    units: UnitsTable | None = None
    totals: list[TotalsTable] | None = None
    snapshot: Literal["content", "footers"] | None = None
    share: Share | None = None
    rows: Annotated[int, Field(ge=1, le=10**9)] | None = None
    workload: list[WorkloadSection] | None = None
    nulls: Literal["reject", "drop"] = "reject"
    duplicates: Literal["keep", "reject"] | None = None

    @model_validator(mode="after")
    def _charged(self) -> TableSection:
        charged = (self.share, self.rows, self.privacy_unit, self.discover, self.units, self.totals)
        if self.public and any(one is not None for one in charged):
            raise ValueError(
                "a public table is released unchanged: remove share, rows, privacy_unit, discover, units and totals"
            )
        if self.key is not None and self.privacy_unit is not None:
            raise ValueError("a key identifies a row, and its rows are the privacy units: remove key or privacy_unit")
        if not isinstance(self.mechanism, str) and self.model_extra:
            raise ValueError(
                f"unknown key {next(iter(self.model_extra))!r}: options belong into the mechanism's section"
            )
        if self.synthesize is not None and self.synthesize.weights:
            raise ValueError("synthesize.weights: a row of a linked table represents one record; remove it")
        if self.synthesize is not None and self.rows is not None and self.synthesize.rows is not None:
            raise ValueError("rows and synthesize.rows are the same setting: remove one of them")
        return self

    def resolved(self, folder: Path) -> TableSection:
        """Return the section with absolute paths; relative paths start at `folder`."""
        parts = None if self.workload is None else [part.resolved(folder) for part in self.workload]
        paths = {"path": located(folder, self.path), "domain": located(folder, self.domain)}
        totals = self.totals and [one.resolved(folder) for one in self.totals]
        own = {"workload": parts, "totals": totals, "unit_through": self.resolved_hops(folder)}
        return self.model_copy(update={**paths, **own})

    @property
    def method(self) -> dict[str, Any]:
        """Mechanism and its options, as a job of one table contains them."""
        own = self.mechanism if isinstance(self.mechanism, MechanismTable) else MechanismTable(name=self.mechanism)
        return {"name": own.name, **own.given, **self.given}


class LinkSection(Settings):
    """Links between the rows of two tables: a table of pairs (`via`), or a foreign key of the child (`child_key`)."""

    name: Annotated[str, Field(pattern=r"^[\w-]{1,64}$")] | None = None
    kind: KINDS
    parent: str
    child: str
    via: Address | None = None
    parent_key: Key | None = None
    child_key: Key | None = None
    max_degree: Annotated[int, Field(ge=1, le=10**6)] | Literal["private"] | None = None
    protects: Literal["parent", "both"] = "parent"
    links: Annotated[int, Field(ge=1)] | None = None
    counts: list[str] | None = None
    order_by: str | Annotated[list[str], Field(min_length=1)] | None = None
    parents: list[str] | None = None
    loops: bool | None = None
    share: Share | None = None
    mechanism: Literal["maxent", "published"] = "maxent"
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    marginals: Annotated[int, Field(ge=1, le=1000)] | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    nulls: Literal["reject", "drop", "keep"] = "reject"
    dangling: Literal["reject", "drop"] = "reject"

    @field_validator("max_degree", mode="before")
    @classmethod
    def _is_bound(cls, value: object) -> object:
        """Refuse other texts than "private" with the accepted values of both types."""
        if isinstance(value, str) and value != "private":
            raise ValueError('max_degree is an integer from 1 to 1,000,000, or "private"')
        return value

    @model_validator(mode="after")
    def _fits(self) -> LinkSection:
        many = self.kind == "many-to-many"
        if many != (self.via is not None):
            raise ValueError("via, the table of pairs, is required for kind many-to-many and for no other")
        if self.child_key is None:
            raise ValueError("child_key is required: the column with the key at the other end")
        if not many and self.protects == "both":
            raise ValueError('protects = "both" requires kind many-to-many; a child is protected with its parent')
        if not many and self.links is not None:
            raise ValueError("links requires kind many-to-many; other kinds have one link per child")
        if many and self.nulls == "keep":
            raise ValueError('nulls = "keep" is for children without a parent; use "reject" or "drop" for pairs')
        if self.loops is not None and self.parent != self.child:
            raise ValueError("loops requires a link within one table")
        if self.kind == "one-to-one" and self.bound > 1:
            raise ValueError("max_degree of a one-to-one link is 1: remove it, or use kind one-to-many")
        if self.order_by is None and self.parents:
            raise ValueError("parents requires order_by: other parents of the children are attributes of a history")
        if self.order_by is not None and (self.kind != "one-to-many" or self.parent == self.child or self.bound < 2):
            raise ValueError("order_by requires kind one-to-many, two tables, and a max_degree of at least 2")
        if self.order_by is not None and self.mechanism == "published":
            raise ValueError('order_by requires mechanism = "maxent"')
        if self.mechanism != "published" and {self.rounds, self.marginals, self.alpha} != {None}:
            raise ValueError('rounds, marginals and alpha require mechanism = "published"')
        return self

    @property
    def called(self) -> str:
        return self.name or (
            self.child if self.via is None else Path(self.via.rstrip("/*")).stem.split("*")[0] or "links"
        )

    @property
    def order(self) -> tuple[str, ...]:
        """Attribute that orders the children of a parent, and further columns; empty without an order."""
        return key_columns(self.order_by)

    @property
    def bound(self) -> int:
        """Largest number of links of a protected row; a usual one until a private one is chosen."""
        stated = None if self.max_degree == "private" else self.max_degree
        return stated or (1 if self.kind == "one-to-one" else MOST_DEGREE)

    @property
    def read_nulls(self) -> str:
        """Policy of reading for nulls at an end; a child that may lack a parent has no link in that case."""
        return "drop" if self.nulls == "keep" else self.nulls

    @property
    def loop(self) -> Rounds:
        """Options of the mechanism "published": rounds, marginals per round, and budget share of the selection."""
        given = {"rounds": self.rounds, "each": self.marginals, "alpha": self.alpha}
        return Rounds(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


class PrivacyOfTables(Privacy):
    """Section [privacy] of a job of several tables; `unit` names the table whose rows are protected."""

    unit: str | None = None  # None: omitted from the digest of a job


class Rows(Settings):
    """Options for writing the synthetic tables."""

    types: Literal["own", "input"] = "own"


class TablesOfJob(Protocol):
    """Tables and links of a job, as the checks of their sections read them."""

    @property
    def tables(self) -> Mapping[str, TableSection]: ...
    @property
    def link(self) -> Sequence[LinkSection]: ...
    @property
    def foreign_keys(self) -> Sequence[LinkSection]: ...
    @property
    def declared(self) -> Mapping[str, Domain]: ...
    @property
    def domains(self) -> Mapping[str, Domain]: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def privacy(self) -> PrivacyOfTables: ...
    def key(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table's key."""

    def ends(self, link: LinkSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns with the parent's key and the child's."""


__all__ = [
    "MOST_DEGREE",
    "MOST_ROUNDS",
    "LinkSection",
    "PrivacyOfTables",
    "Rows",
    "TableSection",
    "TablesOfJob",
    "key_columns",
]  # fmt: skip
