"""Records of evidence: one for every draw and selection of a run, from its value files and stored decisions.

Noise is read from the label of each stored value, not from the plan. A file without a decision and a missing
measurement are refused, so the list contains exactly the draws. All records have one form:

    part, entry          name of the part, and end of the id of the ledger's entry that pays
    decision, place      number of the decision among those of the part, and of the draw in it
    file                 value file in the run directory
    factors, bound       strategies by name, and the bound of the effect of a unit on the counts (`runs.statement`)
    squared_l2, l1       sensitivity to one unit of the release
    multiplier, variance or laplace
                         noise
    cost                 exact μ² or ε

A selection has `count`, `range` and `cost` in place of the noise. The fields `group`, `path`, `row` and `threshold` say
how draws compose (audit.evidence.sensitivities).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError
from dpscale.measurement.value_files import NAME, measured_draws
from dpscale.plans.factor import Factor
from dpscale.plans.factor_fields import factor_fields
from dpscale.plans.measurement_plan import Decision, MeasurementRequest
from dpscale.privacy.draws import GaussianDraw, LaplaceDraw, recounted
from dpscale.privacy.selection import epsilon_below
from dpscale.runs.periods.growing import FOLDER, GrowingPart
from dpscale.runs.run import ENTRIES, DrawFacts, Journaled, Part, Run
from dpscale.runs.statement import ROWS, Facts, votes_on
from dpscale.runs.table import SEARCH_FILE, TablePart
from dpscale.storage.files import listed, present
from dpscale.storage.objects import slashed

Fields = dict[str, Any]


def refused(got: str) -> JobError:
    return JobError("measurements", got, "the unmodified files of the run", "restore them")


@dataclass
class Records:
    """List of records, with the distinct strategies that they name.

    Attributes
    ----------
    run : Run
    parts : mapping of str to dict
        Facts of the parts.
    factors : dict
        Name and fields of each strategy by its digest.
    """

    run: Run
    parts: Mapping[str, Facts]
    factors: dict[str, tuple[str, Fields]] = field(default_factory=dict)

    def all(self) -> list[Fields]:
        """Return the records of all parts.

        Raises
        ------
        JobError
            If the files of a part are not those of its decisions, or a part has a cost and no facts.
        """
        self._check_folders()
        found = list[Fields]()
        for name, facts in self.parts.items():
            if "bounds" not in facts:
                raise JobError("evidence", f"the part {name}", "a part that states bounds of its draws",
                               "add facts_of_draws to it")  # fmt: skip
            found += self._of_part(self.run.parts[name], facts)
        return found

    def _check_folders(self) -> None:
        """Raise JobError for a folder beside those of parts that belongs to no part."""
        parts = self.run.parts.values()
        folders = {part.folder for part in parts}
        for place in {part.folder.partition("/")[0] for part in parts if part.journaled and "/" in part.folder}:
            for name in sorted(listed(self.run.path / place)):
                if (self.run.path / place / name).is_dir() and f"{place}/{name}" not in folders:
                    raise refused(f"{place}/{name} belongs to no part")

    def _of_part(self, part: Part, facts: Facts) -> Iterator[Fields]:
        """Yield the records of a part: draws of its tables, searches and journals.

        Draws of a growing table state the row of its matrix over the periods that they belong to.
        """
        if isinstance(part, GrowingPart):
            for row, name in enumerate(part.released):
                for record in self._measured(part.part_at(f"{FOLDER}/{name}"), part.name, facts):
                    yield record | {"row": row}
            return
        if isinstance(part, TablePart):
            yield from self._measured(part, part.name, facts)
            yield from self._searched(part, facts)
        for journaled in part.journaled:
            yield from self._journaled(part, journaled, facts)

    # ---- measurements of a plan --------------------------------------------------------------------------------------

    def _measured(self, table: TablePart, part: str, facts: Facts) -> Iterator[Fields]:
        """Yield the draws and selections of all decisions of a table."""
        store, decisions = table.measurements, list(table.measurements.decisions())
        store.check_files(decisions)
        for decision in decisions:
            for name, place, request, label in store.drawn(decision):
                where = {"part": part, "entry": "", "decision": decision.round, "place": place}
                yield self._record(where | {"file": self._path(store.folder / name)}, label, request, facts)
        for decision in decisions:
            yield from ({"part": part, "entry": "", **one} for one in _selections(decision))

    def _record(self, where: Fields, label: Fields, request: MeasurementRequest, facts: Facts) -> Fields:
        """Return the record of a measurement: where it is, what it measures, its noise, sensitivity and cost.

        `where` has the part, file and place of the draw, `label` its noise, and `facts` the bounds and steps of the
        part.
        """
        block = request.block
        named = {"attributes": list(block.attributes), "factors": [self._name(factor) for factor in block.factors],
                 "strategy": label.get("strategy"), "bound": ROWS}  # fmt: skip
        norms = int(block.squared_l2_sensitivity), int(block.l1_sensitivity)
        return with_cost(where | named | _noise(label), facts["bounds"][ROWS], facts["steps"], norms)

    def _name(self, factor: Factor) -> str:
        """Return the name of a strategy."""
        if factor.digest not in self.factors:
            self.factors[factor.digest] = f"f{len(self.factors)}", factor_fields(factor)
        return self.factors[factor.digest][0]

    def _path(self, file: Path) -> str:
        """Return a file's path in the run directory."""
        return slashed(file).removeprefix(f"{slashed(self.run.path)}/")

    # ---- draws of the journal ----------------------------------------------------------------------------------------

    def _journaled(self, part: Part, journaled: Journaled, facts: Facts) -> Iterator[Fields]:
        """Yield the draws and selections of a folder of the journal, and refuse files of no draw.

        The name of a file states its decision, its first draw and the end of its draws.

        `drawn` are the facts of the draw with a label; `values` is the number of its values, None if it is not fixed.
        """
        files, seen = sorted(listed(journaled.folder)) if present(journaled.folder) else [], set[str]()
        for name in files:
            # other files of the folder must be known
            if (parts_of_name := NAME.fullmatch(name)) is None:
                if name not in journaled.others:
                    raise refused(f"{name} of {part.name} belongs to no draw")
                continue
            draws = list(measured_draws(journaled.folder / name))
            if [int(parts_of_name[2]), int(parts_of_name[3])] != [0, len(draws)]:
                raise refused(f"{name} of {part.name} does not contain the draws in its name")
            for place, (label, values) in enumerate(draws):
                drawn = _named(journaled, label)
                if drawn is None:
                    raise refused(f"{name} of {part.name} belongs to no draw")
                # noisy values are integers
                if drawn.values not in (None, values.size) or not (values % 1 == 0).all():
                    raise refused(f"{name} of {part.name} has values that differ from its draw")
                seen.add(journaled.name(label))
                where = {"part": part.name, "entry": ENTRIES[journaled.entry], "decision": int(parts_of_name[1]),
                         "place": place, "file": self._path(journaled.folder / name)}  # fmt: skip
                yield _journaled_record(where, label, drawn, facts)
        # every draw that was planned must have a file
        if missing := sorted(set(journaled.draws) - seen):
            raise refused(f"{missing[0]} of {part.name} is missing")
        yield from (
            {"part": part.name, "entry": ENTRIES[journaled.entry], **selection} for selection in journaled.selections
        )

    # ---- searches ----------------------------------------------------------------------------------------------------

    def _searched(self, table: TablePart, facts: Facts) -> Iterator[Fields]:
        """Yield the draws of the searches for cells, whose noise is in the record of their results.

        A search with a tree draws at each node of the tree, with its own multiplier and variance; a node is named by
        the bits of its path from the root.

        `bound` names the bound of a unit's effect: on rows, or on the votes for the values of an attribute.

        `found` is the stored result of a search for the cells of an attribute. Without a tree it is one draw, or
        `levels` of them. A vote of the units has a bound of its own.
        """
        place = 0
        for attribute, found in table.searched.items():
            noise, name = found["measurement"], votes_on(attribute)
            common: Fields = {"factors": [], "strategy": None, "bound": ROWS}
            if "vote" in noise:
                common |= {"bound": name, "votes": ROWS}
            if "threshold" in noise:
                common["threshold"] = noise["threshold"]
            # a single draw, with the number of its levels
            draws = [noise | {"count": int(noise.get("levels", 1))}]
            if "nodes" in found and "variance" not in noise:
                common["group"] = attribute
                draws = [
                    {"path": f"{int(index):0{level}b}" if level else "", "multiplier": multiplier, "variance": variance}
                    for level, index, multiplier, variance, _ in found["nodes"]
                ]
            for noise_of_draw in draws:
                # all searches of a table are decision 0, with consecutive places
                where = {"part": table.name, "entry": ENTRIES["discovery"], "decision": 0, "place": place,
                         "file": self._path(table.path / SEARCH_FILE)}  # fmt: skip
                more = {name: noise_of_draw[name] for name in ("count", "path") if name in noise_of_draw}
                bound = facts["bounds"][common["bound"]]
                yield with_cost(where | common | more | _noise(noise_of_draw), bound, facts["steps"])
                place += 1


def _named(own: Journaled, label: Mapping[str, Any]) -> DrawFacts | None:
    """Return the facts of the draw of a label; None for a label of no draw."""
    try:
        return own.draws.get(own.name(label))
    except (KeyError, TypeError):
        return None


def _journaled_record(where: Fields, label: Fields, drawn: DrawFacts, facts: Facts) -> Fields:
    """Return the record of a draw of the journal, with its sensitivity and cost.

    `drawn.bound` is the changes by one unit, or the name of a bound of the part; draws of one group change together.
    """
    bound = facts["bounds"][drawn.bound] if isinstance(drawn.bound, str) else drawn.bound
    named: Fields = {"factors": [], "strategy": None, "bound": drawn.bound, "count": drawn.count}
    named |= {"group": drawn.group} if drawn.group is not None else {}
    noise = label.get("noise", label)
    return with_cost(where | named | _noise(noise), bound, facts["steps"])


def _noise(label: Mapping[str, Any]) -> Fields:
    """Return the noise of a label."""
    return {name: str(label[name]) for name in ("multiplier", "variance", "laplace") if label.get(name) is not None}


def with_cost(record: Fields, bound: Facts, steps: int, norms: tuple[int, int] | None = None) -> Fields:
    """Return a record with its sensitivity and cost.

    Parameters
    ----------
    record : dict
    bound : dict
        Changes of the counts by one unit: `changes` has alternatives, each with pairs (number of counts, change).
    steps : int
        Number of neighbours of the part that connect two of the release.
    norms : tuple of int, optional
        Largest squared L2 norm and largest L1 norm of a column of the strategy; without a strategy counts are measured.
    """
    squared = max(sum(number * change**2 for number, change in alternative) for alternative in bound["changes"])
    absolute = max(sum(number * change for number, change in alternative) for alternative in bound["changes"])
    if norms is not None:
        squared, absolute = norms[0] * absolute**2, norms[1] * absolute
    squared, absolute = squared * steps**2, absolute * steps
    cost = noise_cost(record, squared, absolute)
    return record | {"squared_l2": str(squared), "l1": str(absolute), "cost": str(cost)}


def noise_cost(record: Fields, squared: int, absolute: int) -> Fraction:
    """Return the cost of a draw of a squared L2 and an L1 sensitivity."""
    law, name = (LaplaceDraw, "laplace") if "laplace" in record else (GaussianDraw, "variance")
    draw = law(int(record["multiplier"]), int(record[name]), Fraction(0))
    return recounted(draw, squared, absolute, 1)


def _selections(decision: Decision) -> Iterator[Fields]:
    """Yield the selections of a round; their total cost if it does not list single ones."""
    if not decision.selection_cost:
        return
    fields = decision.to_dict()
    beta, count = Fraction(fields.get("beta") or 0), len(fields.get("chosen") or ())
    if beta and beta * count == decision.selection_cost:
        yield {"decision": decision.round, "count": count, "cost": str(beta), "range": str(epsilon_below(beta))}
    else:
        yield {"decision": decision.round, "count": 1, "cost": str(decision.selection_cost), "range": None}
