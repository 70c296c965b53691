"""Rules across tables: over attributes of a child and of one of its parents, which linked rows satisfy.

    [[rule]]
    rule = "events.year = teams.year"

    [[rule]]
    rule = "if patients.sex = 'M' then stays.ward != 'maternity'"

The tables are those of a one-to-many or one-to-one link. If several links connect the two tables, a rule holds for
each. Rules are public, like domains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.domain.attribute import Attribute
from dpscale.domain.rules import (
    DomainConstraint,
    StructuralZero,
    ValueRule,
    check_contradictions,
    implied_rules,
    read_constraints,
    with_dependencies,
)
from dpscale.job.protected_unit import has_bounded_parents
from dpscale.job.sections import LinkSection, TablesOfJob


@dataclass(frozen=True)
class LinkedRule:
    """Rule over attributes of the two tables of a link; its names are TABLE.ATTRIBUTE.

    Attributes
    ----------
    rule : DomainConstraint
    parent, child : tuple of str
        Attributes of either table in the rule. The last one of the child changes where no parent fits a row.
    """

    rule: DomainConstraint
    parent: tuple[str, ...]
    child: tuple[str, ...]


def linked_rules(job: TablesOfJob) -> dict[str, list[LinkedRule]]:
    """Return the rules of every link that has some, by the name of the link.

    A rule belongs to each link whose two ends are its tables. Rules over two tables that follow from others are added.

    Raises
    ------
    JobError, DomainError
        For a rule that does not describe two linked tables or their values.
    """
    find = _Find(job)
    read = {section.rule: read_constraints(section.rule, find) for section in job.rule or ()}
    every = []
    for text, rules in read.items():
        for rule in rules:
            _check_tables(job, text, rule)
            every.append(rule)
    names = dict.fromkeys(name for rule in every for name in rule.names)
    sizes = {name: find(name).size for name in names}
    check_contradictions(read, sizes, {name: find(name).listed for name in names})

    by_link: dict[str, list[LinkedRule]] = {}
    implied = [rule for rule in implied_rules(every) if len(_tables(rule.names)) == 2]
    for constraint in (*with_dependencies(every, sizes), *implied):
        for link in _links(job, constraint):
            sides = {end: tuple(name.partition(".")[2] for name in constraint.names if name.startswith(f"{end}."))
                     for end in (link.parent, link.child)}  # fmt: skip
            _check_column(job, link, sides[link.child][-1])
            linked = LinkedRule(constraint, sides[link.parent], sides[link.child])
            by_link.setdefault(link.called, []).append(linked)
    _check_bounds(job, by_link)
    return by_link


def _tables(names: Sequence[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _links(job: TablesOfJob, rule: DomainConstraint) -> list[LinkSection]:
    """Return the links between the tables of a rule."""
    tables = _tables(rule.names)
    return [link for link in job.link if {link.parent, link.child} == tables and link.via is None]


def _check_tables(job: TablesOfJob, text: str, rule: StructuralZero | ValueRule) -> None:
    """Raise JobError for a rule that does not have two linked tables, or has a number."""
    if isinstance(rule, ValueRule) and rule.numbers:
        raise JobError("rule", f"{text!r} with the number {rule.numbers[0]}", "attributes of two linked tables",
                       "state the rule in the domain file of one table")  # fmt: skip
    if len(_tables(rule.names)) != 2 or not _links(job, rule):
        raise JobError("rule", f"{text!r}, over {', '.join(rule.names)}",
                       "attributes of the two tables of a one-to-many or one-to-one link",
                       "state a rule within one table in its domain file, or as [[tables.NAME.rule]]")  # fmt: skip


@dataclass(frozen=True)
class _Find:
    """Attributes by TABLE.ATTRIBUTE, under that name."""

    job: TablesOfJob

    def __call__(self, name: str) -> Attribute:
        """Return the attribute TABLE.ATTRIBUTE of a rule. Raises JobError if it is unknown, or its cells are."""
        table, _, attribute = str(name).partition(".")
        if table not in self.job.tables:
            raise JobError("rule", repr(name), "TABLE.ATTRIBUTE",
                           nearest(table, list(self.job.tables)))  # fmt: skip
        domain = self.job.declared[table]
        if attribute not in domain.names:
            raise JobError("rule", repr(name), f"an attribute of {table}: {', '.join(domain.names)}",
                           nearest(attribute, list(domain.names)))  # fmt: skip
        if domain[attribute].search is not None:
            raise JobError("rule", f"{name}, whose cells are not public", "public cells",
                           "state its cells in the domain file")  # fmt: skip
        return replace(domain[attribute], name=name)


def _check_column(job: TablesOfJob, link: LinkSection, name: str) -> None:
    """Raise JobError for an attribute of a child that shares its column: its value could not change alone."""
    domain = job.declared[link.child]
    if domain.is_shared(domain[name].column):
        raise JobError("rule", f"{link.child}.{name}, which shares its column",
                       "an attribute with a column of its own", "name another attribute")  # fmt: skip


def _check_bounds(job: TablesOfJob, rules: Mapping[str, Sequence[LinkedRule]]) -> None:
    """Raise JobError for an attribute in rules of several links, of which one bounds the children of a parent.

    Where no place is left at a parent that fits, the last child's attribute of a rule changes, which must not break a
    rule of another link.
    """
    ruled = [link for link in job.link if link.called in rules]
    for link in ruled:
        bounded = has_bounded_parents(job, link)
        changing = {f"{link.child}.{rule.child[-1]}" for rule in rules[link.called]}
        for other in [other for other in ruled if other != link and other.child == link.child]:
            both = changing & {f"{other.child}.{name}" for rule in rules[other.called] for name in rule.child}
            if bounded and both:
                raise JobError("rule", f"{min(both)} in rules of {link.called} and {other.called}",
                               "an attribute in rules of one link, or of links to public parents",
                               "state one of the rules")  # fmt: skip
