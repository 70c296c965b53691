"""Job file of several tables: `[tables.NAME]`, `[[link]]`, and the sections shared with a job of one table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.base.settings import Settings, check_texts
from dpscale.domain import Domain
from dpscale.job import job_content, job_sentence
from dpscale.job.data import Address, UnitSettings
from dpscale.job.search_budget import budget_with_delta, table_deltas
from dpscale.job.sections import (
    AllocationTable,
    DiscoverTable,
    EngineSettings,
    MechanismTable,
    Named,
    Output,
    Part,
    Privacy,
    ReconstructTable,
    SynthesizeTable,
    TotalsTable,
    UnitsTable,
)
from dpscale.ledger.location import resolved
from dpscale.mechanisms import DEFAULT_OF_LINKED
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.relational.published import Rounds
from dpscale.storage.objects import is_url, located, real

Share = Annotated[float, Field(gt=0, le=1)]
Key = str | list[str]
KINDS = Literal["many-to-many", "one-to-many", "one-to-one"]
MOST_DEGREE, MOST_ROUNDS = 10, 1000
LEAST_PRIVATE = 1e-9


class TableSection(UnitSettings, Named):
    """Section of a table: its data, key and share of the budget, and the sections of a job of one table.

    `mechanism` is a name, whose options are other keys of this section, or a section with the name and its options.
    """

    key: Key | None = None
    public: bool = False
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
    workload: list[Part] | None = None
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
    loops: bool | None = None
    share: Share | None = None
    mechanism: Literal["maxent", "published"] = "maxent"
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    marginals: Annotated[int, Field(ge=1, le=1000)] | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    nulls: Literal["reject", "drop", "keep"] = "reject"
    dangling: Literal["reject", "drop"] = "reject"

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
        if self.mechanism != "published" and {self.rounds, self.marginals, self.alpha} != {None}:
            raise ValueError('rounds, marginals and alpha require mechanism = "published"')
        return self

    @property
    def called(self) -> str:
        return self.name or (
            self.child if self.via is None else Path(self.via.rstrip("/*")).stem.split("*")[0] or "links"
        )

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


class Rows(Settings):
    """Options for writing the synthetic tables."""

    types: Literal["own", "input"] = "own"


class CompositeJob(Settings):
    """Job of several tables. Paths are absolute after reading."""

    kind: ClassVar[str] = "database"
    tables: Annotated[dict[Annotated[str, Field(pattern=r"^[\w-]{1,64}$")], TableSection], Field(min_length=1)]
    link: list[LinkSection] = Field(default_factory=list)
    privacy: Privacy
    engine: EngineSettings = EngineSettings()
    synthesize: Rows = Rows()
    allocation: AllocationTable | None = None

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any], stored: bool = False) -> CompositeJob:
        """Read a job of several tables; the parameters are those of `TableJob.read`."""
        return cls.parse(*job_content(source, stored))

    @classmethod
    def parse(cls, content: Mapping[str, Any], folder: Path) -> CompositeJob:
        """Validate the content; relative paths start at `folder`."""
        check_texts(content, "")
        try:
            job = cls.model_validate(dict(content))
        except ValidationError as error:
            raise job_sentence(error, _keys) from None
        job = job._resolved(folder)
        job._check()
        job._check_named()
        return job

    def _check_named(self) -> None:
        """Raise JobError for tables in an object store without a dataset name; they may have no common folder."""
        places = [one.path for one in self.tables.values()] + [one.via or "" for one in self.link]
        if self.privacy.dataset is None and any(map(is_url, places)):
            raise JobError("privacy.dataset", "missing", "a name if tables are in an object store", "set it")

    @property
    def dataset(self) -> str:
        """Name of the data on the ledger: as given, or the common folder of all private files."""
        paths = [real(one.path) for one in self.tables.values() if not one.public]
        paths += [real(one.via) for one in self.link if one.via]
        return self.privacy.dataset or os.path.commonpath(paths or ["/"])

    @property
    def distributions(self) -> dict[str, str]:
        """Versions of other distributions whose formats the tables have, by name."""
        return dict(one.rsplit(" ", 1) for table in self.tables.values() for one in table.distributions)

    @cached_property
    def declared(self) -> dict[str, Domain]:
        """Domains of the tables as their files state them, with assumed cells where they are not public."""
        return {name: Domain.read(one.domain) for name, one in self.tables.items()}

    @cached_property
    def domains(self) -> dict[str, Domain]:
        """Domains of the tables: those declared, or with the cells that were found (`with_domains`)."""
        return self.declared

    def with_domains(self, domains: Mapping[str, Domain]) -> CompositeJob:
        """Return the job with the domains of some tables in place of those declared; budgets stay."""
        job = self.model_copy()
        vars(job)["domains"] = {**self.declared, **domains}
        return job

    @cached_property
    def search_deltas(self) -> dict[str, float]:
        """Additive delta of the searches of each table of which values are searched, to a unit of the job."""
        listed = {name: self.tables[name].discover or DiscoverTable() for name, domain in self.declared.items()
                  if any(one.search is not None and one.search.uses_delta for one in domain.searches)}  # fmt: skip
        return table_deltas(self.privacy, listed)

    @cached_property
    def budget(self) -> Budget:
        """Budget of all draws beside the additive delta of the searches."""
        return budget_with_delta(self.privacy, sum(self.search_deltas.values()))

    def key(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table's key."""
        return _columns(self.tables[table].key)

    def duplicates(self, table: str) -> str:
        """Return the policy for rows with equal keys: by default keep one, or reject if neighbours replace a row."""
        replaced = any(link.protects == "both" for link in self.link)
        return self.tables[table].duplicates or ("reject" if replaced else "keep")

    def ends(self, link: LinkSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns with the parent's key and the child's, in the table of pairs or the child's table."""
        if link.kind == "many-to-many":
            return _columns(link.parent_key) or self.key(link.parent), _columns(link.child_key)
        return _columns(link.child_key), self.key(link.child)

    def counted(self, link: LinkSection, table: str) -> list[LinkSection]:
        """Return the earlier links of a table's rows whose numbers are attributes in this link."""
        return [one for one in self.link if one.called in (link.counts or ()) and one.parent == table]

    def to_dict(self) -> dict[str, Any]:
        """Return the job as the content of a job file."""
        return self.model_dump(exclude_none=True)

    def _check(self) -> None:
        """Check the sections against each other."""
        if self.privacy.noise != GAUSSIAN:
            raise JobError("privacy.delta", "epsilon without delta for several tables", "epsilon with delta, or rho",
                           "add delta")  # fmt: skip
        names = [one.called for one in self.link]
        if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise JobError("link.name", f"{twice!r} twice", "distinct names", "set name for one of the links")
        if taken := next((one.called for one in self.link if one.via and one.called in self.tables), None):
            raise JobError("link.name", f"{taken!r}, which is a table", "a different name for a table of pairs",
                           "set name")  # fmt: skip
        for name in self.tables:
            self._check_distinct(f"tables.{name}.key", self.key(name), name)
        self._check_columns()
        self._check_searches()
        for at, link in enumerate(self.link):
            self._check_counts(link, names[:at])
            for end in (link.parent, link.child):
                if end not in self.tables:
                    raise JobError(f"link {link.called}", f"a table {end!r}", ", ".join(self.tables),
                                   nearest(end, list(self.tables)))  # fmt: skip
            self._check_keys(link)
            if link.via is None:
                self._check_distinct(f"link {link.called}", self.ends(link)[0], link.child)
        if (total := sum(self.given_shares.values())) > 1 + LEAST_PRIVATE:
            raise JobError("share", f"{total:g} in total", "a total of at most 1", "lower them")

    def _check_searches(self) -> None:
        """Raise JobError for cells that no budget finds, or that could leave a link without a row at its end."""
        for name, domain in self.declared.items():
            if self.tables[name].public and domain.searches:
                raise JobError(f"tables.{name}.domain", f"cells of {domain.searches[0].name} that are not public, in a"
                               " public table", "public cells, because a public table has no budget for a search",
                               "state the cells, or make the table private")  # fmt: skip
        _ = self.budget  # refuses additive deltas that do not fit the job
        for link in self.link:
            ends = [link.parent, *([link.child] if link.via else [])]
            searched = [one for end in ends if end in self.tables for one in self.declared[end].searches]
            names = [one.name for one in searched if one.search and one.search.uses_delta and one.outside == "drop"]
            if names and link.dangling != "drop":
                raise JobError(f"link {link.called}: dangling", f"{link.dangling!r}, but rows whose value of {names[0]}"
                               " is not found are dropped", '"drop"', "set it, or other = true in the domain"
                               " file")  # fmt: skip

    def _check_distinct(self, field: str, columns: tuple[str, ...], table: str) -> None:
        """Raise JobError if a key column is an attribute."""
        if overlap := [column for column in columns if column in self.domains[table].names]:
            raise JobError(field, f"{overlap[0]!r}, which is in the domain", "a column that is not an attribute",
                           "remove it from the domain file")  # fmt: skip

    def _check_columns(self) -> None:
        """Raise JobError if a column of a released table would contain two keys: the row's own and a parent's."""
        used = {name: list(self.key(name)) for name in self.tables}
        for link in self.link:
            first, second = self.ends(link)
            taken = used.get(link.child, []) if link.via is None else list(second)
            if both := next((column for column in first if column in taken), None):
                raise JobError(f"link {link.called}", f"column {both!r} for two keys", "a column for each key",
                               "add a copy of the column under another name")  # fmt: skip
            if link.via is None and link.child in used:
                used[link.child] += first

    def _check_counts(self, link: LinkSection, before: list[str]) -> None:
        """Raise JobError unless counted links precede this link and have one of its tables as parent."""
        field, called, counts = f"link {link.called}", {one.called: one for one in self.link}, link.counts or []
        if late := next((name for name in counts if name not in before), None):
            raise JobError(f"{field}: counts", f"{late!r}", "names of earlier links",
                           nearest(late, before) if before else "remove it")  # fmt: skip
        if foreign := next((name for name in counts if called[name].parent not in (link.parent, link.child)), None):
            raise JobError(f"{field}: counts", f"{foreign!r}, links of {called[foreign].parent}",
                           f"links whose parent is {link.parent} or {link.child}", "remove it")  # fmt: skip

    def _check_keys(self, link: LinkSection) -> None:
        needs = [link.parent, *([link.child] if link.via else [])]
        for end in needs:
            if not self.key(end):
                raise JobError(f"tables.{end}.key", "missing", f"the key column to which link {link.called} refers",
                               "set it")  # fmt: skip
        if len(self.ends(link)[0]) != len(self.key(link.parent)):
            raise JobError(
                f"link {link.called}",
                "a foreign key that differs in length from the parent's key",
                f"{len(self.key(link.parent))} columns",
                "list a column for each one of the parent's key",
            )

    @property
    def given_shares(self) -> dict[str, float]:
        given = {f"tables.{name}": one.share for name, one in self.tables.items()}
        given |= {f"links.{one.called}": one.share for one in self.link}
        return {name: share for name, share in given.items() if share is not None}

    @cached_property
    def shares(self) -> dict[str, float]:
        """Budget share of each component: as given; the remainder is divided equally among the others."""
        pieces = [f"tables.{name}" for name, one in self.tables.items() if not one.public]
        pieces += [f"links.{one.called}" for one in self.link]
        given = self.given_shares
        left, others = 1 - sum(given.values()), [name for name in pieces if name not in given]
        if others and left <= LEAST_PRIVATE:
            raise JobError("share", f"no remainder for {others[0]}", "shares with a remainder for the other components",
                           "lower the shares, or set this one")  # fmt: skip
        return {name: given.get(name, left / max(len(others), 1)) for name in pieces}

    def _resolved(self, folder: Path) -> CompositeJob:
        tables = {name: one.resolved(folder) for name, one in self.tables.items()}
        links = [
            one if one.via is None else one.model_copy(update={"via": located(folder, one.via)}) for one in self.link
        ]
        privacy = self.privacy.model_copy(update={"ledger": resolved(folder, self.privacy.ledger)})
        return self.model_copy(update={"tables": tables, "link": links, "privacy": privacy})


def _columns(key: Key | None) -> tuple[str, ...]:
    return () if key is None else (key,) if isinstance(key, str) else tuple(key)


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """Return the settings at a location of the job."""
    if not location:
        return sorted(CompositeJob.model_fields)
    shared: dict[str, type[Settings]] = {"privacy": Privacy, "engine": EngineSettings, "synthesize": Rows,
                                         "allocation": AllocationTable}  # fmt: skip
    sections = shared | {"tables": TableSection, "link": LinkSection}
    return sorted(sections[str(location[0])].model_fields)


__all__ = ["CompositeJob", "LinkSection", "TableSection"]
