"""Job file: tables, links between their rows, and a budget.

A job of one table may have the short form, with `[data]` and further sections (docs/jobs.md). It is rewritten to
`[tables.data]` when it is read (`forms.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError

from dpscale.base.display import display_path, nearest, safe_repr
from dpscale.base.errors import JobError
from dpscale.base.nesting import MOST_LEVELS, is_too_deep
from dpscale.base.settings import Settings, check_texts
from dpscale.domain import Domain
from dpscale.job.data import Places, below, default_dataset, files_of, key_columns, places_of
from dpscale.job.forms import ONLY, SEVERAL, check_sections, from_short, job_sentence, to_short, with_budget
from dpscale.job.joins import Join, resolve_joins
from dpscale.job.link_rules import LinkedRule, linked_rules
from dpscale.job.protected_unit import check_columns, check_distinct, check_formats, check_keys
from dpscale.job.search_budget import budget_with_delta, table_deltas
from dpscale.job.sections import (
    AboutTable,
    BudgetTable,
    EngineSettings,
    JoinSection,
    JoinWorkload,
    LinkSection,
    LinkShare,
    Privacy,
    RuleTable,
    SynthesizeTable,
    TableSection,
    TableShares,
)
from dpscale.job.selects import with_selects
from dpscale.job.structure import with_structures
from dpscale.job.table_checks import check_counts, check_history, check_order, check_references, check_searches
from dpscale.job.table_job import TableJob
from dpscale.ledger.location import resolved
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.storage.files import is_local, is_path, place, read_text, toml_fault
from dpscale.storage.objects import is_url, located

LEAST_PRIVATE = 1e-9  # smaller remainders of the budget, and excesses of the sum of shares, are due to rounding


class Job(Settings):
    """Job: tables, links between their rows, and a budget. Paths are absolute after reading."""

    tables: Annotated[dict[Annotated[str, Field(pattern=r"^[\w-]{1,64}$")], TableSection], Field(min_length=1)]
    link: list[LinkSection] = Field(default_factory=list)
    reference: list[LinkSection] | None = None  # links between public tables, which are released unchanged
    privacy: Privacy
    engine: EngineSettings = EngineSettings()
    synthesize: SynthesizeTable = SynthesizeTable()  # of several tables: the types of their columns
    workload: list[JoinWorkload] | None = None  # None: omitted from the digest of a job
    joins: dict[str, JoinSection] | None = None
    budget: BudgetTable = BudgetTable()
    rule: list[RuleTable] | None = None  # across tables; None: omitted from the digest of a job
    about: AboutTable = AboutTable()
    _is_short: bool = PrivateAttr(False)

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any], stored: bool = False) -> Job:
        """Read a job file, or a dict with its content (paths are then relative to the current folder).

        Parameters
        ----------
        source : path or mapping
        stored : bool
            The job of a run directory, whose paths stay as they are.
        """
        return cls.parse(*job_content(source, stored))

    @classmethod
    def parse(cls, content: Mapping[str, Any], folder: Path) -> Job:
        """Validate the content of a job file; relative paths start at `folder`."""
        check_texts(content, "")
        content = with_selects(with_structures(content, folder), folder)
        is_short = not SEVERAL & content.keys()
        check_sections(content, is_short)
        try:
            job = cls.model_validate(from_short(content) if is_short else dict(content))._with_references()
        except ValidationError as error:
            keys = sorted({*cls.model_fields} - {"reference"})  # which the job moves there itself
            raise job_sentence(error, is_short, keys) from None
        job._is_short = is_short
        read = job._resolved(folder)
        check_texts(read.to_dict(), "")  # the name of the folder may not be valid text
        read = read.at(folder, places_of(job.to_dict(), read.to_dict()))
        if is_short:
            read.table.checked()
        else:
            read._check()
            read._check_named()
        return read

    def at(self, folder: Path, places: Places, former: Places | None = None) -> Job:
        """Return the job with the folder of its file, the places of its files, and texts of its first digest."""
        job = self.model_copy()
        vars(job).update(folder=folder, places=places, former=former or {})
        return job

    @cached_property
    def folder(self) -> Path:
        """Folder from which relative paths of the job start."""
        return Path.cwd()

    @cached_property
    def former(self) -> Places:
        """Texts of the job, mapped to those that version 1 of its digest has."""
        return {}

    @cached_property
    def places(self) -> Places:
        """Absolute paths of the job, mapped to those that it states relative to its folder."""
        return {}

    @property
    def is_short(self) -> bool:
        """Whether the job was stated in the short form of one table."""
        return self._is_short

    @property
    def kind(self) -> str:
        """Kind of the job's runs."""
        if not self.is_short:
            return "database"
        return "" if self.tables[ONLY].period is None else "periods"

    @property
    def table(self) -> TableJob:
        """Job of the only table, with the whole budget. Raises JobError for a job of several tables."""
        if not self.is_short:
            raise JobError("tables", "several tables", "a job with [data]", "use `dpscale run` or dp.run")
        shares = self.budget.tables.get(ONLY, TableShares())
        return TableJob(
            data=self.tables[ONLY],
            privacy=self.privacy,
            engine=self.engine,
            shares=shares,
            dataset=self.dataset,
            files=self.files,
        )

    def _with_references(self) -> Job:
        """Return the job with the links between public tables apart, because nothing is measured for them."""
        public = {name for name, section in self.tables.items() if section.public}
        references = [link for link in self.link if link.via is None and {link.parent, link.child} <= public]
        if not references:
            return self
        measured = [link for link in self.link if link not in references]
        return self.model_copy(update={"link": measured, "reference": [*(self.reference or ()), *references]})

    def _check_named(self) -> None:
        """Raise JobError for tables in an object store without a dataset name; they may have no common folder."""
        places = [table.path for table in self.tables.values()] + [link.via or "" for link in self.link]
        if self.privacy.dataset is None and any(map(is_url, places)):
            raise JobError("privacy.dataset", "missing", "a name if tables are in an object store", "set it")

    @property
    def dataset(self) -> str:
        """Name of the data on the ledger: as given, or the path from the folder of the ledger to all private files."""
        return self.privacy.dataset or default_dataset(self._private_paths, self.privacy.ledger, self.places)

    @property
    def files(self) -> str:
        """Common folder of all private files if the job states no name for them."""
        return "" if self.privacy.dataset else files_of(self._private_paths)

    @property
    def _private_paths(self) -> list[str]:
        paths = [one.path for one in self.tables.values() if not one.public]
        return [*paths, *(one.via for one in self.link if one.via)]

    @property
    def distributions(self) -> dict[str, str]:
        """Versions of other distributions whose formats, or plug-ins of an only table, the job names."""
        if self.is_short:
            return self.table.distributions
        return dict(one.rsplit(" ", 1) for table in self.tables.values() for one in table.distributions)

    @cached_property
    def declared(self) -> dict[str, Domain]:
        """Domains of the tables as their files state them, with assumed cells where they are not public."""
        return {name: one.read_domain() for name, one in self.tables.items()}

    @cached_property
    def domains(self) -> dict[str, Domain]:
        """Domains of the tables: those declared, or with the cells that were found (`with_domains`)."""
        return self.declared

    def with_domains(self, domains: Mapping[str, Domain]) -> Job:
        """Return the job with the domains of some tables in place of those declared; budgets stay."""
        job = self.model_copy()
        vars(job)["domains"] = {**self.declared, **domains}
        return job

    @cached_property
    def search_deltas(self) -> dict[str, float]:
        """Additive delta of the searches of each table of which values are searched, to a unit of the job."""
        stated = {name: self.budget.tables.get(name, TableShares()).discover_delta
                  for name, domain in self.declared.items()
                  if any(one.search is not None and one.search.uses_delta for one in domain.searches)}  # fmt: skip
        return table_deltas(self.privacy, stated)

    @cached_property
    def total_budget(self) -> Budget:
        """Budget of all draws beside the additive delta of the searches."""
        return budget_with_delta(self.privacy, sum(self.search_deltas.values()))

    @cached_property
    def joined(self) -> dict[str, Join]:
        """Joins of the workload over several tables, by name."""
        return resolve_joins(self)

    @cached_property
    def linked_rules(self) -> dict[str, list[LinkedRule]]:
        """Rules across tables, by link."""
        return linked_rules(self)

    def key(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table's key."""
        return key_columns(self.tables[table].key)

    def duplicates(self, table: str) -> str:
        """Return the policy for rows with equal keys: by default keep one, or reject if neighbours replace a row."""
        replaced = any(link.protects == "both" for link in self.link)
        return self.tables[table].duplicates or ("reject" if replaced else "keep")

    def ends(self, link: LinkSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns with the parent's key and the child's, in the table of pairs or the child's table."""
        if link.kind == "many-to-many":
            return key_columns(link.parent_key) or self.key(link.parent), key_columns(link.child_key)
        return key_columns(link.child_key), self.key(link.child)

    def counted(self, link: LinkSection, table: str) -> list[LinkSection]:
        """Return the earlier links of a table's rows whose numbers are attributes in this link."""
        return [one for one in self.link if one.called in (link.counts or ()) and one.parent == table]

    def other_parents(self, link: LinkSection) -> list[LinkSection]:
        """Return the earlier links whose parents' attributes are attributes of the children in this link."""
        return [one for one in self.link if one.called in (link.parents or ())]

    def order_columns(self, link: LinkSection) -> tuple[str, ...]:
        """Return the columns that order the children of a parent; none without an order."""
        first, rest = link.order[:1], link.order[1:]
        return *(self.domains[link.child][name].column for name in first), *rest

    @property
    def foreign_keys(self) -> list[LinkSection]:
        """All links of the job, with those between public tables."""
        return [*self.link, *(self.reference or ())]

    def to_dict(self) -> dict[str, Any]:
        """Return the job as the content of a job file, in the form in which it was stated."""
        content = self.model_dump(exclude_none=True)
        budget = {name: value for name, value in content.pop("budget").items() if value}
        content["synthesize"] = {"types": self.synthesize.types}
        if budget:
            content["budget"] = budget
        about = content.pop("about")
        if about:
            content["about"] = about
        return to_short(content) if self.is_short else content

    def _check(self) -> None:
        """Check the sections against each other; raise JobError for the first contradiction.

        The order is: names of links, tables of links, columns of tables, keys and histories of each link, public
        references and formats, joins and rules across tables, and the budget.
        """
        if self.privacy.noise != GAUSSIAN:
            raise JobError("privacy.delta", "epsilon without delta for several tables", "epsilon with delta, or rho",
                           "add delta")  # fmt: skip

        # a name identifies a link in errors, shares and files
        names = [link.called for link in self.foreign_keys]
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise JobError("link.name", f"{twice[0]!r} twice", "distinct names", "set name for one of the links")
        taken = [link.called for link in self.link if link.via and link.called in self.tables]
        if taken:
            raise JobError("link.name", f"{taken[0]!r}, which is a table", "a different name for a table of pairs",
                           "set name")  # fmt: skip
        for link in self.foreign_keys:
            for end in (link.parent, link.child):
                if end not in self.tables:
                    raise JobError(f"link {link.called}", f"a table {end!r}", ", ".join(self.tables),
                                   nearest(end, list(self.tables)))  # fmt: skip

        for name, section in self.tables.items():
            # links refer to single rows, which a weighted row is not
            if section.synthesize is not None and section.synthesize.weights:
                raise JobError(f"tables.{name}.synthesize.weights", "true, but a row represents one record",
                               "rows without weights", "remove it")  # fmt: skip
            check_distinct(self, f"tables.{name}.key", self.key(name), name)
        check_columns(self)
        check_searches(self)

        for number, link in enumerate(self.foreign_keys):
            earlier = names[:number]
            check_counts(self, link, earlier)
            check_keys(self, link)
            check_history(self, link, earlier)
            check_order(self, link)
            if link.via is None:
                check_distinct(self, f"link {link.called}", self.ends(link)[0], link.child)
        check_references(self)
        check_formats(self)
        _ = self.joined, self.linked_rules  # refuse parts without exactly one join, and rules of tables without a link
        self._check_budget()
        total = sum(self.given_shares.values())
        if total > 1 + LEAST_PRIVATE:
            raise JobError("budget", f"shares of {total:g} in total", "a total of at most 1", "lower them")

    def _check_budget(self) -> None:
        """Raise JobError for the share of a part that the job does not have, or that has no budget."""
        for piece in (f"{kind}.{name}" for kind in ("tables", "links", "joins") for name in getattr(self.budget, kind)):
            if piece not in self.pieces:
                raise JobError(f"budget.{piece}", "no part of the job that has a budget", ", ".join(self.pieces),
                               nearest(piece, self.pieces))  # fmt: skip

    @property
    def given_shares(self) -> dict[str, float]:
        """Shares that the job states, and those of joins without one: a part of the remainder, equal for all parts.

        A share is a part of the squared μ of the job. Keys are `tables.NAME`, `links.NAME` and `joins.NAME`. Tables and
        links without a share are left to the division of the budget.
        """
        stated: dict[str, LinkShare | None] = {f"tables.{name}": self.budget.tables.get(name) for name in self.tables}
        stated |= {f"links.{link.called}": self.budget.links.get(link.called) for link in self.link}
        stated |= {f"joins.{name}": section for name, section in self.budget.joins.items()}
        given = {}
        for name, section in stated.items():
            if section is not None and section.share is not None:
                given[name] = section.share
        others = [name for name in self.pieces if name not in given]
        each = max(1 - sum(given.values()), 0.0) / max(len(others), 1)
        joins = [name for name in others if name.startswith("joins.")] if each > LEAST_PRIVATE else []
        return given | dict.fromkeys(joins, each)

    @property
    def pieces(self) -> list[str]:
        """Names of the components that share the budget."""
        tables = [f"tables.{name}" for name, one in self.tables.items() if not one.public]
        return [*tables, *(f"links.{one.called}" for one in self.link), *(f"joins.{name}" for name in self.joined)]

    @cached_property
    def shares(self) -> dict[str, float]:
        """Budget share of each component: as given; the remainder is divided equally among the others."""
        pieces, given = self.pieces, self.given_shares
        remainder, others = 1 - sum(given.values()), [name for name in pieces if name not in given]
        if others and remainder <= LEAST_PRIVATE:
            raise JobError("budget", f"no remainder for {others[0]}", "shares with a remainder for the other"
                           " components", "lower the shares, or set this one")  # fmt: skip
        return {name: given.get(name, remainder / max(len(others), 1)) for name in pieces}

    def _resolved(self, folder: Path) -> Job:
        """Return the job with absolute paths; relative ones start at `folder`."""
        tables = {name: section.resolved(folder) for name, section in self.tables.items()}
        links = []
        for link in self.link:
            links.append(link if link.via is None else link.model_copy(update={"via": located(folder, link.via)}))
        privacy = self.privacy.model_copy(update={"ledger": resolved(folder, self.privacy.ledger)})
        parts = self.workload and [part.resolved(folder) for part in self.workload]
        return self.model_copy(update={"tables": tables, "link": links, "privacy": privacy, "workload": parts})


def job_content(source: str | Path | Mapping[str, Any], stored: bool = False) -> tuple[Mapping[str, Any], Path]:
    """Return the content of a job file or a dict, and the folder of its relative paths; see `Job.read`."""
    content, folder = (source, Path.cwd()) if isinstance(source, Mapping) else _job_file(source)
    if is_too_deep(content):
        raise JobError("job", f"more than {MOST_LEVELS} nested levels", "a job", "check its brackets")
    if stored:
        return with_budget(content), folder
    return content if isinstance(source, Mapping) or not is_local(folder) else below(content, folder), folder


def _job_file(source: str | Path) -> tuple[Mapping[str, Any], Path]:
    """Return the content of a job file and its folder. Raises JobError if it cannot be read or is not TOML."""
    if not is_path(source):
        raise JobError("job", safe_repr(source), "the path of a job file, or its content as a dict", "pass one of them")
    path = place(source, "job")
    try:
        content = tomllib.loads(read_text(path))
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise JobError("job", f"cannot read {display_path(path)} ({reason})", "a job file", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JobError(
            "job", f"{display_path(path)} is not TOML{toml_fault(error, path)}", "a job file", "fix the syntax"
        ) from None
    return content, (path.resolve() if is_local(path) else path).parent
