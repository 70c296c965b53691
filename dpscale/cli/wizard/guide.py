"""Choices of a person about the drafts of `domain sketch`, as domain file, job file and plan of the command line.

A choice is the text of a field in the page. The drafts, the classes `Domain` and `Job` and the planner are those of the
other commands, so that both files and all refusals are the same.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

from dpscale.base.errors import DpscaleError
from dpscale.cli.check import BUDGET, attribute_facts, dataset_of, draft_job, near_job, one_way
from dpscale.cli.group import more_about
from dpscale.cli.outcome import command, near
from dpscale.cli.plan import make_plans, missing_words, plan_summary, plan_text
from dpscale.domain import Domain
from dpscale.domain.attribute import PERIODS, WORDS
from dpscale.domain.domain_schema import KINDS, POLICIES
from dpscale.job import Job
from dpscale.job.sections import AboutTable
from dpscale.records.sketch import WARNING, Sketch
from dpscale.storage.files import write_private
from dpscale.workload.sums import MeanQueries

OFFERED = {
    kind: KINDS[kind] | ({"format"} if kind == "date" else set())
    for kind in ("integer", "bins", "categories", "boolean", "date", "text-prefix")
}  # others are written by hand
KEYS = ("low", "high", "edges", "values", "length", "by", "format")
LISTS, NUMERIC = ("edges", "values"), ("low", "high", "edges", "length", "step")
NUMBER = re.compile(r"[+-]?(\d{1,300}|(\d*\.\d+|\d+\.?)([eE][+-]?\d{1,4})?|\d+[eE][+-]?\d{1,4})", re.ASCII)
SHOWN_SETS = 40  # whose errors are drawn
BY_PERSON = "left out by the person who reviewed the draft"


@dataclass(frozen=True)
class Guide:
    """The drafts for one table, and the folder of their files; `written` states how the data are written."""

    sketch: Sketch
    data: str
    written: Mapping[str, Any]
    folder: Path

    @cached_property
    def files(self) -> tuple[Path, Path]:
        """Domain file and job file."""
        stem = re.sub(r"[^\w-]+", "-", dataset_of(self.data)).strip("-") or "data"
        return self.folder / f"{stem}.domain.toml", self.folder / f"{stem}.job.toml"

    def page(self) -> dict[str, Any]:
        """Return the values of the page's template."""
        fields = {key: [kind for kind in OFFERED if key in OFFERED[kind]] for key in KEYS}
        columns = [name for name in (*self.sketch.attributes, *self.sketch.omitted) if name]
        return {"sketch": self.sketch, "warning": WARNING, "kinds": list(OFFERED), "fields": fields, "periods": PERIODS,
                "policies": POLICIES, "shown": shown, "files": self.files, "about": list(AboutTable.model_fields),
                "units": list(dict.fromkeys((*self.sketch.units, *columns))), "budget": BUDGET, "data": self.data,
                "words": WORDS[:3]}  # fmt: skip

    def texts(self, chosen: Mapping[str, Any]) -> tuple[str, str]:
        """Return the contents of the domain file and of the job file.

        Parameters
        ----------
        chosen : mapping
            `changes`: lists of table (attributes or numbers), name, key and text. `left_out`: attributes. `reviewed`,
            `about`, `unit`, `bound`, `epsilon`, `delta`, and `tables`: mappings with `attributes` and `of`, the
            number of which means are asked; without `attributes` the counts of each one.
        """
        left_out = [name for name in chosen["left_out"] if name in self.sketch.attributes]
        numbers = {name: table for name, table in self.sketch.numbers.items() if table["from"] not in left_out}
        kept = {name: table for name, table in self.sketch.attributes.items() if name not in left_out}
        numbers = _changed(numbers, chosen["changes"], "numbers")
        kept = _changed(kept, chosen["changes"], "attributes")
        omitted = {**self.sketch.omitted, **dict.fromkeys(left_out, BY_PERSON)}
        draft = replace(self.sketch, attributes=kept, numbers=numbers, omitted=omitted)
        path, domain, dataset = near_job(self.data, self.folder), self.files[0].name, dataset_of(self.data)
        written = draft_job(draft, path, domain, dataset, self.written, _sections(chosen))
        return draft.text(chosen["reviewed"]), written

    def draft(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return both texts, the attributes, and the plan, or the sentence of the first refusal."""
        domain, job = self.texts(chosen)
        found: dict[str, Any] = {"domain": domain, "job": job, "attributes": [], "refused": ""}
        try:
            content = tomllib.loads(domain)
            read = Domain.from_dict({name: table for name, table in content.items() if name != "reviewed"})
            found["attributes"] = [attribute_facts(attribute) for attribute in read.attributes]
            Job.parse(tomllib.loads(job), self.folder)
            Domain.from_dict(content)  # refuses a draft, so that it never leaves the memory
            found["plan"] = self._plan(domain, job)
        except DpscaleError as error:
            found["refused"] = f"{error}{more_about(error)}"
        return found

    def write(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Write both files and return their commands; an unreviewed draft is kept as it is, for a later review.

        A file that exists is replaced only if `chosen` has `replace`. Nothing is written if `draft` refuses.
        """
        found = self.draft(chosen)
        # a draft that is not reviewed may still have faults
        if found["refused"] and (chosen["reviewed"] or not found["attributes"]):
            return found
        present = [path.name for path in self.files if path.exists() or path.is_symlink()]
        if present and not chosen.get("replace"):
            return {"present": present}
        for path, text in zip(self.files, (found["domain"], found["job"]), strict=True):
            # an existing file is replaced as a whole, by a new file that is renamed
            place = path.with_name(f".{path.name}.{token_hex(4)}") if path.name in present else path
            write_private(place, text)
            place.replace(path)
        steps = ["check job", "plan", "run"] if chosen["reviewed"] else []
        commands = [f"{command()} {step} {near(str(self.files[1]))}" for step in steps]
        return {"written": [path.name for path in self.files], "commands": commands, "refused": found["refused"]}

    def _plan(self, domain: str, job: str) -> dict[str, Any]:
        """Return the figures of `dpscale plan` for the job, and the expected error of each set.

        The unreviewed domain is written into a temporary folder, so that the planner reads it as a file.
        """
        from dpscale.base.numerics import one_thread
        from dpscale.engine.schedulers import resolve
        from dpscale.job.allocation import planned_jobs
        from dpscale.runs.stages.preview import MOST, RECORDS, planned_risk

        content = tomllib.loads(job)
        with TemporaryDirectory() as folder, one_thread():
            content["data"]["domain"] = str(Path(folder) / self.files[0].name)
            write_private(content["data"]["domain"], domain)
            read = Job.parse(content, self.folder)
            [(name, table)] = planned_jobs(read).items()
            with closing(resolve(scheduler=read.engine.scheduler)) as engine:
                planned = make_plans(read, {name: table}, None, False, engine)[name]
                summary = plan_summary(table, planned, engine, False, None)
            summary |= {"rows": None, "notes": [], "attack_risk": planned_risk(table).describe()}
            sets = planned.forecast(table.answer_budget(table.read_domain())).errors(MOST)
            text = "\n".join(filter(None, [plan_text(summary), missing_words(read)]))
        worst_first = sorted(sets, key=lambda errors: -float(errors["error"]))
        largest = [{"unit": RECORDS, **errors} for errors in worst_first[:SHOWN_SETS]]
        return {"sets": largest, "count": len(sets), "text": text, "curve": summary["curve"]}


def shown(value: Any) -> str:
    """Return a value of a domain file as the text of a field, a list with a line for each value."""
    if isinstance(value, list):
        return "\n".join(map(shown, value))
    return value if isinstance(value, str) else repr(value)


def _changed(tables: Mapping[str, Any], changes: Sequence[Sequence[str]], group: str) -> dict[str, Any]:
    """Return tables of the domain file with the changes; keys of another kind of attribute are dropped.

    A change is (group, name, key, text): `group` is the section of the domain file, such as numbers.
    """
    found = {}
    for name, table in tables.items():
        texts = {key: text for section, named, key, text in changes if (section, named) == (group, name)}
        # the kind comes first, because it decides how other texts are read
        changed = {**table, **{key: text for key, text in texts.items() if key == "kind"}}
        kind = str(changed.get("kind", ""))
        # categories of a column of numbers are numbers
        numeric = NUMERIC + ("values",) * (kind == "categories" and table.get("kind") in ("integer", "bins"))
        changed |= {key: _value(key, text, kind, numeric) for key, text in texts.items() if key != "kind"}
        known = OFFERED.get(kind, set()) | {"kind", *POLICIES, *WORDS}
        found[name] = {key: value for key, value in changed.items()
                       if value not in ("", [], {}) and (key in known or group == "numbers")}  # fmt: skip
    return found


def _value(key: str, text: str, kind: str, numeric: Sequence[str]) -> Any:
    """Return the value of a field: a list by lines, labels by lines with =, or a text; a number for a key of numbers.

    `numeric` lists the keys of numbers.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if key == WORDS[3]:  # labels of values
        parts = (line.partition(" = " if " = " in line else "=") for line in lines)
        return {name.strip(): label.strip() for name, _, label in parts}
    if key in LISTS:
        return [_number(line) if key in numeric else line for line in lines]
    return _number(text) if key in numeric and kind != "date" else text.strip()


def _number(text: str) -> Any:
    """Return the number that a text states, else the text, which the reader of the file refuses."""
    text = text.strip()
    if not NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _sections(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of the job that a person has decided.

    Tables of the same statistic are joined into one part of the workload.

    `chosen` has the texts of the fields. An amount that equals its default (BUDGET) is written as the default.
    """
    unit = {"privacy_unit": chosen["unit"], "max_rows_per_unit": _number(chosen["bound"])} if chosen["unit"] else {}
    amounts = {key: _number(chosen[key]) for key in BUDGET if chosen[key].strip()}
    workload = list[dict[str, Any]]()
    for table in chosen["tables"]:
        part = {"family": MeanQueries.name, "of": table["of"]} if table.get("of") else one_way()
        if "attributes" in table:
            part.pop("degree", None)
            # an earlier part that differs from this one in its attributes only
            same = next(
                (former for former in workload if former == part | {"attributes": former.get("attributes")}), None
            )
            part["attributes"] = [*(same or {}).get("attributes", []), table["attributes"]]
            workload = [former for former in workload if former is not same]
        workload.append(part)
    about = {key: text.strip() for key, text in chosen["about"].items() if text.strip()}
    privacy = {key: BUDGET[key] if value == BUDGET[key] else value for key, value in amounts.items()}
    data = {key: value for key, value in unit.items() if value != ""}
    return {"about": about, "data": data, "privacy": privacy, "workload": workload}
