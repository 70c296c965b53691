"""Job file: tables, links between their rows, and a budget.

A job of one table may have the short form, with `[data]` and further sections (docs/jobs.md). It is rewritten to
`[tables.data]` when it is read (`forms.py`).

*Checks.*
Sections of a job of several tables are checked against each other: searches, counted links, public tables.

*Public files of Bayesian networks.*
They become the families of their networks when the job is read. The content of a job, its digest and its runs therefore
have the structure itself: another file of the same structure is the same job, and a changed structure is another job.
Probabilities and states of a file are not used.

*Digest.*
By it the ledger refuses a second release of the same job. The digest of version 2 has the paths of a job relative to
its folder, that of version 1 has them absolute. Both have the names and the form that jobs had when version 2 began, so
that no released job gets another digest.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError

from dpscale.base.display import display_path, nearest, safe_repr
from dpscale.base.errors import DpscaleError, JobError
from dpscale.base.nesting import MOST_LEVELS, is_too_deep
from dpscale.base.settings import Settings, check_texts
from dpscale.domain import Domain
from dpscale.job.data import (
    Filed,
    Places,
    below,
    default_dataset,
    files_of,
    identity_of,
    key_columns,
    mapped,
    places_of,
)
from dpscale.job.forms import (
    ONLY,
    SEVERAL,
    check_sections,
    from_short,
    job_sentence,
    to_short,
    with_budget,
    without_budget,
)
from dpscale.job.joins import Join, resolve_joins
from dpscale.job.link_rules import LinkedRule, linked_rules
from dpscale.job.protected_unit import check_columns, check_distinct, check_formats, check_keys, has_bounded_parents
from dpscale.job.sections import (
    LIMITS,
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
    TablesOfJob,
)
from dpscale.job.selects import with_selects
from dpscale.job.table_job import SHARE, TableJob, budget_with_delta, table_deltas
from dpscale.ledger.location import resolved
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.relational.rounding import marginal_cells
from dpscale.storage.files import is_local, is_path, place, read_bytes, read_text, toml_fault
from dpscale.storage.objects import is_url, located

LEAST_PRIVATE = 1e-9  # smaller remainders of the budget, and excesses of the sum of shares, are due to rounding

MECHANISM, PRIOR, SUFFIX = "mechanism", "prior", ".bif"

MOST_CELLS = 1 << 27  # of all cross marginals of a published loop: 1 GiB

DIGEST_VERSION = 2  # of new releases
FORMER_NAMES = {"allow_weak_privacy": "careless"}  # keys of [privacy]
EXPLICIT_DEFAULTS = {"errors": "auto", "agree": False}  # of [reconstruct], also of a job that omits them


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
        paths = [table.path for table in self.tables.values() if not table.public]
        return [*paths, *(link.via for link in self.link if link.via)]

    @property
    def distributions(self) -> dict[str, str]:
        """Versions of other distributions whose formats, or plug-ins of an only table, the job names."""
        if self.is_short:
            return self.table.distributions
        named = [name_and_version for table in self.tables.values() for name_and_version in table.distributions]
        return dict(name_and_version.rsplit(" ", 1) for name_and_version in named)

    @cached_property
    def declared(self) -> dict[str, Domain]:
        """Domains of the tables as their files state them, with assumed cells where they are not public."""
        return {name: table.read_domain() for name, table in self.tables.items()}

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
        stated = {}
        for name, domain in self.declared.items():
            if any(attribute.search is not None and attribute.search.uses_delta for attribute in domain.searches):
                stated[name] = self.budget.tables.get(name, TableShares()).discover_delta
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

    @property
    def id_columns(self) -> Iterator[tuple[Filed | str, tuple[str, ...]]]:
        """The files with keys, or with ids of units without a stated type, each with these columns.

        A table of pairs is a path.
        """
        for table in self.tables.values():
            yield table, key_columns(table.key)
            if table.unit_type is None:
                yield table, table.unit_columns or ()
                for hop in table.unit_through or ():
                    yield hop, (*hop.columns[0], *hop.columns[1])
        for link in self.link:
            to_parent, to_child = self.ends(link)
            yield (self.tables[link.child], to_parent) if link.via is None else (link.via, (*to_parent, *to_child))

    def counted(self, link: LinkSection, table: str) -> list[LinkSection]:
        """Return the earlier links of a table's rows whose numbers are attributes in this link."""
        return [other for other in self.link if other.called in (link.counts or ()) and other.parent == table]

    def other_parents(self, link: LinkSection) -> list[LinkSection]:
        """Return the earlier links whose parents' attributes are attributes of the children in this link."""
        return [other for other in self.link if other.called in (link.parents or ())]

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
        equal = max(1 - sum(given.values()), 0.0) / max(len(others), 1)
        joins = [name for name in others if name.startswith("joins.")] if equal > LEAST_PRIVATE else []
        return given | dict.fromkeys(joins, equal)

    @property
    def pieces(self) -> list[str]:
        """Names of the components that share the budget."""
        tables = [f"tables.{name}" for name, table in self.tables.items() if not table.public]
        return [*tables, *(f"links.{link.called}" for link in self.link), *(f"joins.{name}" for name in self.joined)]

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


def check_searches(job: TablesOfJob) -> None:
    """Raise JobError for cells that no budget finds, or that could leave a link without a row at its end.

    A search by values uses an additive delta and may miss a rare value, whose records are then dropped if `outside` is
    "drop".
    """
    for name, domain in job.declared.items():
        if job.tables[name].public and domain.searches:
            raise JobError(f"tables.{name}.domain", f"cells of {domain.searches[0].name} that are not public, in a"
                           " public table", "public cells, because a public table has no budget for a search",
                           "state the cells, or make the table private")  # fmt: skip
    _ = job.total_budget  # refuses additive deltas that do not fit the job
    for link in job.link:
        ends = [link.parent, *([link.child] if link.via else [])]
        names = list[str]()  # attributes of which some values may not be found, so that their rows are dropped
        for end in ends:
            for searched in job.declared[end].searches if end in job.tables else ():
                if searched.search and searched.search.uses_delta and searched.outside == "drop":
                    names.append(searched.name)
        if names and link.dangling != "drop":
            raise JobError(f"link {link.called}.dangling", f"{link.dangling!r}, but rows whose value of {names[0]}"
                           " is not found are dropped", '"drop"', "set it, or other = true in the domain"
                           " file")  # fmt: skip


def check_counts(job: TablesOfJob, link: LinkSection, before: list[str]) -> None:
    """Raise JobError unless counted links precede this link and have one of its tables as parent."""
    field, by_name, counts = f"link {link.called}", {other.called: other for other in job.link}, link.counts or []
    for name in counts:
        if name not in before:
            raise JobError(f"{field}.counts", f"{name!r}", "names of earlier links",
                           nearest(name, before) if before else "remove it")  # fmt: skip
    ends = list(dict.fromkeys((link.parent, link.child)))
    for name in counts:
        if by_name[name].parent not in ends:
            raise JobError(f"{field}.counts", f"{name!r}, links of {by_name[name].parent}",
                           f"links whose parent is {' or '.join(ends)}", "remove it")  # fmt: skip


def check_order(job: TablesOfJob, link: LinkSection) -> None:
    """Raise JobError for marginals of more attributes than both tables have, or of more cells than memory permits.

    Only a published loop measures such marginals, of up to `degree` attributes of both ends and of counts.
    """
    if link.mechanism != "published":
        return
    field, order = f"link {link.called}.degree", link.loop.order
    ends = (job.declared[name] for name in (link.parent, link.child))
    u, v = ([domain[name].size for name in domain.names] for domain in ends)  # cells of the attributes of each end
    largest = len(u) + len(v) + len(link.counts or [])
    if link.degree is not None and order > largest:
        raise JobError(field, f"{order}, but the tables have {largest} attributes", f"from 2 to {largest}", "lower it")
    cells = sum(marginal_cells(u, v, order))
    if cells > MOST_CELLS:
        raise JobError(field, f"{order}, whose marginals have {cells:,} cells", f"at most {MOST_CELLS:,}", "lower it")


def check_history(job: TablesOfJob, link: LinkSection, before: list[str]) -> None:
    """Raise JobError for an order that is no attribute, or of children of a public table, and for other parents.

    A history is the sequence of a parent's children in an order (`order_by`). Its model needs public cells of the
    order's attribute, and parents that are units or below, so that a bound limits how many children one unit adds.
    `before` has the names of the links before this one, whose parents are known when the history is drawn.
    """
    field, names = f"link {link.called}", job.declared[link.child].names
    if link.order and link.order[0] not in names:
        raise JobError(f"{field}.order_by", f"{link.order[0]!r}", f"an attribute of {link.child}: {', '.join(names)}",
                       nearest(link.order[0], list(names)))  # fmt: skip
    if link.order and job.declared[link.child][link.order[0]].search is not None:
        raise JobError(f"{field}.order_by", f"{link.order[0]!r}, whose cells are not public", "public cells",
                       "state its cells in the domain file")  # fmt: skip
    if link.order and not has_bounded_parents(job, link):
        raise JobError(f"{field}.order_by", f"children of {link.parent}, whose rows have no bound", "a parent whose"
                       " rows belong to units", "set it for the link by which rows belong to their unit")  # fmt: skip

    by_name = {section.called: section for section in job.link}
    # further parents of a child, as attributes of the history: each child needs one, and it must be public
    for name in link.parents or []:
        if name not in before:
            raise JobError(f"{field}.parents", f"{name!r}", "names of earlier links",
                           nearest(name, before) if before else "remove it")  # fmt: skip
        other = by_name[name]
        if other.child != link.child or other.via or has_bounded_parents(job, other):
            raise JobError(f"{field}.parents", f"{name!r}, a link of {other.parent} and {other.child}",
                           f"links of {link.child} to a public or side table", "remove it")  # fmt: skip
        if (other.nulls, other.dangling) != ("reject", "reject"):
            raise JobError(f"{field}.parents", f"{name!r}, whose rows may lack a parent",
                           'nulls and dangling "reject"', "set them, or remove it")  # fmt: skip


def check_references(job: TablesOfJob) -> None:
    """Raise JobError for a setting of a link between public tables that has no effect: its rows stay as they are."""
    for link in job.foreign_keys[len(job.link) :]:  # the links between public tables come last
        changed: dict[str, object] = {name: getattr(link, name) for name in ("max_degree", "counts", "loops")}
        changed |= {name: "drop" if getattr(link, name) == "drop" else None for name in ("nulls", "dangling")}
        for name, value in changed.items():
            if value is not None:
                raise JobError(f"link {link.called}.{name}", f"{value!r} between two public tables",
                               "rows that are released unchanged", "remove it")  # fmt: skip


def former_content(job: Job) -> dict[str, Any]:
    """Return the content of a job as it was when version 2 of the digest began, without words for readers."""
    content = without_budget(job.to_dict(), [link.called for link in job.link])
    content.pop("about", None)
    return content


def job_digest(job: Job, domain: Domain | None = None, version: int = DIGEST_VERSION) -> str:
    """Return the SHA-256 that identifies a job: of its settings and of its domains.

    The settings are in the sections and with the names of earlier versions, because digests of released jobs must stay.
    Those that do not change the release, such as limits of the engine, are left out.

    Parameters
    ----------
    job : Job
    domain : Domain, optional
        Domain of the only table, whose digest also leaves out settings that may change without cost.
    version : int
    """
    content = former_content(job)
    content["privacy"] = {FORMER_NAMES.get(key, key): value for key, value in content["privacy"].items()}
    content["privacy"].pop("analyst", None)  # two analysts do not release one job twice
    for setting in LIMITS:
        content["engine"].pop(setting, None)
    if domain is not None:
        content.pop("synthesize", None)
        content.get("time", {}).pop("changed", None)  # may be accepted later, for a legal erasure
        content["reconstruct"] = EXPLICIT_DEFAULTS | content["reconstruct"]
        if "discover" in content:
            content["discover"] = {"share": SHARE} | content["discover"]

    stated = identity_of(content, job.places) if version > 1 else mapped(content, job.former)
    domains = [declared.digest for declared in job.declared.values()] if domain is None else domain.digest
    return hashlib.sha256(json.dumps([stated, domains], sort_keys=True).encode()).hexdigest()
