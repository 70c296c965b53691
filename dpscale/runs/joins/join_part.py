"""Run of a join: the run of its base table, whose partitions return the columns of the other tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpscale.contributions.joins import (
    CACHE,
    PAIR,
    CountLookup,
    Join,
    JoinedPartition,
    Lookup,
    RowLookup,
    check_families,
    joined_table,
    new_token,
    parts_of,
)
from dpscale.contributions.links import column_name, with_key_ids
from dpscale.contributions.units import Bound
from dpscale.domain import Domain
from dpscale.engine.contribution_bounds import read_unit_lookup, rows_beyond, survey_units
from dpscale.engine.counting import partition_groups
from dpscale.job.data import Hop, key_columns
from dpscale.job.join_job import JoinJob, LookupSection, join_jobs
from dpscale.job.neighbours import public_attributes_of
from dpscale.privacy.protection import REPLACE
from dpscale.records import Table
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.table import TablePart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

SHARE = 8  # part of the memory setting for the rows that are looked up
NO_DOMAIN = Domain({"rows": 2})


class JoinedTable(TablePart):
    """Part of a join of linked tables.

    Attributes
    ----------
    whole : LinkedTables
    """

    job: JoinJob
    checks_rows = False

    def __init__(self, whole: LinkedTables, name: str, job: JoinJob) -> None:
        self.whole, self.depends_on = whole, tuple(f"tables.{table}" for table in whole.tables)
        super().__init__(whole.run, f"joins.{name}", job, job.read_domain(), f"joins/{name}")

    @property
    def public_attributes(self) -> list[str]:
        """Attributes of side tables that the job declares public and the join uses."""
        return public_attributes_of(self.whole.job, self.path.name)

    def measure(self, engine: Engine) -> None:
        super().measure(engine)
        CACHE.clear()

    def synthesize(self, engine: Engine) -> None:
        """Do nothing: a join has answers only."""

    @property
    def contribution_bound(self) -> Bound:
        return self.job.join.bound or 1

    @property
    def replaces(self) -> bool:
        """Whether neighbours replace a row."""
        return self.job.data.privacy_unit == PAIR

    @property
    def lookup_tables(self) -> list[Table]:
        sections = self.job.join.lookups
        return [*map(_opened, sections), *(_hop(hop) for one in sections for hop in one.through or ())]

    def restrict(self, table: Table, engine: Engine) -> Table:
        """Return the join, whose base is the table; of equal pairs one is in it."""
        settings, memory = self.job.join, self.job.engine.bytes // SHARE
        if settings.owned is not None and (unit := self.job.data.unit_column) is not None:
            owned = key_columns(settings.owned)
            read_unit_lookup(engine, [(with_key_ids(table, owned), column_name(owned), unit)])  # refuses two owners
        tables = self.lookup_tables
        base = NO_DOMAIN if not settings.attributes else Domain.read(self.job.data.domain)
        lookups = tuple(self._lookup(number, tables, memory, table) for number, one in enumerate(settings.lookups)
                        if one.source == -1)  # fmt: skip
        found = joined_table(table, Join(base, settings.attributes, lookups, tuple(settings.pair or ())))
        if settings.pair is None or self.replaces:
            return found
        return self._distinct(found, engine)

    def _lookup(self, number: int, tables: list[Table], memory: int, source: Table) -> Lookup:
        """Return the lookup of a section, with those of its own rows; `source` is the table that refers to it."""
        one, table = self.job.join.lookups[number], tables[number]
        at, key = tuple(one.at), tuple(one.key)
        refers = [(table, key)]
        for hop in one.through or ():  # each refers to the next, the last one to the source
            check_families(one.link, [refers[-1], (_hop(hop), hop.columns[0])])
            refers.append((_hop(hop), hop.columns[1]))
        check_families(one.link, [(source, at), refers[-1]])
        below = (self._lookup(place, tables, memory, table) for place, other in enumerate(self.job.join.lookups)
                 if other.source == number)  # fmt: skip
        onward = tuple(other for other in below if isinstance(other, RowLookup))
        names = len(one.attributes) + sum(len(other.names) for other in onward)
        rows = sum(part.row_bound() for part in {part.path: part for part in table.partitions}.values())
        common: dict[str, Any] = {"parts": parts_of(rows, names, memory), "token": new_token(), "memory": 2 * memory}
        if one.bound is not None:
            nulls, child_nulls = one.policies
            hops = tuple((_hop(hop), *hop.columns) for hop in one.through or ())
            return CountLookup(one.link, at, key, table, tuple(one.attributes.items()), one.bound, (nulls, child_nulls),
                               onward, hops, **common)  # fmt: skip
        nulls, dangling, key_nulls, duplicates = one.policies
        policies = nulls, dangling, key_nulls, duplicates
        return RowLookup(one.link, at, key, table, one.attributes, policies, onward, **common)

    def _distinct(self, table: Table, engine: Engine) -> Table:
        """Return the table without repeated pairs."""
        groups, rows = partition_groups(table.partitions, engine.workers), survey_units(engine, table.partitions, PAIR)
        found = rows_beyond(engine, self.domain, groups, PAIR, 1, rows, self.job.engine.bytes,
                            self.domain.axis_names[:1], drop=True)  # fmt: skip
        parts = [replace(one, without=found[one]) if one in found and isinstance(one, JoinedPartition) else one
                 for one in table.partitions]  # fmt: skip
        return replace(table, partitions=tuple(parts))

    @property
    def protects(self) -> Any:
        found = super().protects
        return replace(found, relation=REPLACE, unit=None) if self.replaces else found


def join_parts(whole: LinkedTables) -> list[JoinedTable]:
    """Return the parts of the joins, which follow the tables: these refuse keys of two units."""
    jobs = join_jobs(whole.job, whole.neighbours)
    return [JoinedTable(whole, name, job) for name, job in jobs.items()]


def _hop(hop: Hop) -> Table:
    return hop.origin.table(hop.path, NO_DOMAIN)


def _opened(section: LookupSection) -> Table:
    domain = NO_DOMAIN if section.domain is None else Domain.read(section.domain)
    return section.origin.table(section.path, domain)
