"""Forms of a job file: the short form of one table, and the form that every job has after it is read.

The short form has [data] and sections of the table beside it. It is rewritten to [tables.data], which contains them.
Messages name the fields as the user has written them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError
from dpscale.base.settings import Settings, message_of
from dpscale.job.data import Hop, UnitSettings
from dpscale.job.sections import (
    AboutTable,
    BudgetTable,
    EngineSettings,
    JoinSection,
    JoinShare,
    JoinWorkload,
    LinkSection,
    LinkShare,
    MechanismTable,
    Output,
    PeriodSettings,
    Privacy,
    ReconstructTable,
    RuleTable,
    SynthesizeTable,
    TableSection,
    TableShares,
    TotalsTable,
    WorkloadSection,
)

NUMBER_TEXT = re.compile(r"[+-]?\d+(\.\d+|\.?\d*e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
ONLY = "data"  # name of the table of the short form
SEVERAL = {"tables", "link"}  # sections that the short form does not have
TABLE_SECTIONS: dict[str, type[Settings]] = {
    "workload": WorkloadSection,
    "mechanism": MechanismTable,
    "reconstruct": ReconstructTable,
    "output": Output,
    "synthesize": SynthesizeTable,
    "totals": TotalsTable,
    "rule": RuleTable,
    "time": PeriodSettings,
}
JOB_SECTIONS: dict[str, type[Settings]] = {
    "privacy": Privacy,
    "engine": EngineSettings,
    "budget": BudgetTable,
    "about": AboutTable,
}
SHORT_SECTIONS = TABLE_SECTIONS | JOB_SECTIONS
LISTED = ("workload", "rule", "totals")  # sections that may occur several times
MOST_SECTIONS = 2  # that a message names for a misplaced key
SHARES: dict[str, type[Settings]] = {"tables": TableShares, "links": LinkShare, "joins": JoinShare}  # of [budget]
MODELS = SHORT_SECTIONS | {
    "tables": TableSection,
    "link": LinkSection,
    "joins": JoinSection,
    "unit_through": Hop,
}  # fmt: skip
SHORT_KEYS = ("links", "period", "time")  # of a table in the short form only
DATA_KEYS = sorted({*UnitSettings.model_fields, "snapshot", "links", "period"})
BUDGET_KEYS = sorted({*TableShares.model_fields} - {"share"})  # of [budget] in the short form
DEFAULTS: dict[str, Any] = {"mechanism": {}, "reconstruct": {}, "output": {}}


def from_short(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a job in the short form as that of several tables: its sections are in [tables.data].

    Sections of a table replace equal keys of [data] and DEFAULTS. The default of `snapshot` is the content of the
    files. Data that are not a mapping pass unchanged, for a later check to refuse.
    """
    data = content["data"]
    sections = {name: section for name, section in content.items() if name in TABLE_SECTIONS}
    table = {"snapshot": "content", **data, **DEFAULTS, **sections} if isinstance(data, Mapping) else data
    others = {name: section for name, section in content.items() if name not in ("data", *TABLE_SECTIONS)}
    if isinstance(content.get("budget"), Mapping):
        others["budget"] = {"tables": {ONLY: content["budget"]}}
    return {**others, "tables": {ONLY: table}}


def to_short(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the short form of the content of a job with the table [tables.data] only."""
    table = content["tables"][ONLY]
    data = {name: value for name, value in table.items() if name in DATA_KEYS}
    sections = {name: section for name, section in table.items() if name in TABLE_SECTIONS}
    others = {name: content[name] for name in JOB_SECTIONS if name in content}
    if "budget" in content:
        others["budget"] = content["budget"]["tables"][ONLY]
    return {"data": data, **sections, **others}


FORMER = {
    "discover": ("discover", "share"),
    "discover_delta": ("discover", "delta"),
    "units": ("units", "share"),
    "cut": ("units", "cut"),
}  # sections and keys of a table before [budget]
FORMER_SHARES = {"method": "planned", "first": 0.02}  # defaults of [allocation] before [budget]


def without_budget(content: dict[str, Any], links: Sequence[str]) -> dict[str, Any]:
    """Return the content of a job with its shares where they were before [budget]; `links` are names of its links.

    Shares of links and joins were in their sections, and the division of the budget was in [allocation].
    """
    budget = content.pop("budget", {})
    if "data" in content:
        return content | _former_shares(budget)
    for name, shares in budget.get("tables", {}).items():
        content["tables"][name] |= _former_shares(shares)
    for name, link in zip(links, content["link"], strict=True):
        link |= budget.get("links", {}).get(name, {})
    for name, shares in budget.get("joins", {}).items():
        content.setdefault("joins", {}).setdefault(name, {}).update(shares)
    if FORMER_SHARES.keys() & budget:
        division = FORMER_SHARES | budget
        content["allocation"] = {"method": division["method"], "share": division["first"]}
    return content


def _former_shares(shares: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shares of [budget] under the sections and keys in which earlier versions had them."""
    former: dict[str, Any] = {name: value for name, value in shares.items() if name not in FORMER}
    for name, (section, key) in FORMER.items():
        if name in shares:
            former.setdefault(section, {})[key] = shares[name]
    return former


def with_budget(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a stored job with its shares in [budget], where earlier versions had other sections.

    A job of one table has its shares at the top level; one of several tables has them in its tables, links and joins.
    """
    stored: dict[str, Any] = copy.deepcopy(dict(content))
    if "tables" not in stored:
        budget = _take_shares(stored)
    else:
        division = stored.pop("allocation", {})
        budget = {name: division[key] for name, key in (("method", "method"), ("first", "share")) if key in division}
        tables = {name: _take_shares(table) for name, table in _items(stored["tables"]) if isinstance(table, dict)}
        links = {_name_of(link): {"share": link.pop("share")} for link in stored.get("link", ()) if "share" in link}
        joins = {name: {key: join.pop(key) for key in ("share", "cut") if key in join}
                 for name, join in stored.get("joins", {}).items()}  # fmt: skip
        for kind, shares in (("tables", tables), ("links", links), ("joins", joins)):
            stated = {name: share for name, share in shares.items() if share}
            if stated:
                budget[kind] = stated
    return {"budget": budget, **stored} if budget else stored


def _take_shares(table: dict[str, Any]) -> dict[str, Any]:
    """Remove the sections of shares from a stored table, in place, and return the shares under the keys of [budget]."""
    sections = {name: table.pop(name, {}) for name in ("discover", "units")}
    found = {name: sections[section][key] for name, (section, key) in FORMER.items() if key in sections[section]}
    return found | ({"share": table.pop("share")} if "share" in table else {})


def _name_of(link: Mapping[str, Any]) -> str:
    return LinkSection.model_validate({key: value for key, value in link.items() if key != "share"}).called


def check_sections(content: Mapping[str, Any], is_short: bool) -> None:
    """Raise JobError for sections and keys of the other form, and for sections that the short form requires."""
    if not is_short:
        for name, table in _items(content.get("tables")):
            _refuse_others(f"tables.{name}", table, given=SHORT_KEYS)
        _refuse_others("synthesize", content.get("synthesize"), ["types"])
        return
    _refuse_others("", content, sorted({"data", *TABLE_SECTIONS, *JOB_SECTIONS}))
    _refuse_others("data", content.get("data"), DATA_KEYS)
    _refuse_others("budget", content.get("budget"), BUDGET_KEYS)
    _refuse_others("privacy", content.get("privacy"), given=["unit"])
    if isinstance(content.get("mechanism"), str):
        raise JobError("mechanism", f"{content['mechanism']!r}: it should be a table", "", "fix it")
    missing = [name for name in ("data", "privacy", "workload") if name not in content]
    if missing:
        raise JobError(missing[0], "missing", "a value", "add it to the job file")


def _items(content: Any) -> Any:
    return content.items() if isinstance(content, Mapping) else ()


def _refuse_others(where: str, section: Any, keys: Sequence[str] = (), given: Collection[str] = ()) -> None:
    """Raise JobError for a key of a section that is not one of `keys`, if there are any, or is one of `given`.

    `given` are keys that only the other form has; `where` is the path of the section, "" for the job.
    """
    for key, _ in _items(section):
        if key in given or (keys and key not in keys):
            known = keys or [name for name in accepted_keys(tuple(where.split("."))) if name not in given]
            remedy = _section_of(str(key), where) if keys else ""
            raise JobError(
                f"{where}.{key}".strip("."), "unknown key", ", ".join(known), remedy or nearest(str(key), known)
            )


def _section_of(key: str, own: str = "") -> str:
    """Return the remedy for a key that sections of the short form other than `own` have; empty if none or many do."""
    sections = {"data": DATA_KEYS} | {name: list(model.model_fields) for name, model in SHORT_SECTIONS.items()}
    having = [name for name, keys in sections.items() if key in keys and name != own]
    found = [f"[[{name}]]" if name in LISTED else f"[{name}]" for name in having]
    return f"move it to {' or '.join(found)}" if 1 <= len(found) <= MOST_SECTIONS else ""


def accepted_keys(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys of a section, in the form of several tables.

    `location` is the path to the section, as pydantic states it: keys, and positions in lists.
    """
    names = [part for part in location if isinstance(part, str)]  # without positions in lists
    if names[0] in ("tables", "joins"):  # the second is the name of the table or join
        names = names[:1] + names[2:]
    if names[0] == "budget":
        model = SHARES.get("".join(names[1:2]), BudgetTable)
    else:
        model = JoinWorkload if names == ["workload"] else MODELS[names[-1]]
    return sorted(model.model_fields)


def job_sentence(error: ValidationError, is_short: bool, keys: Sequence[str]) -> JobError:
    """Return the first fault of a job as an error.

    Of several faults an unknown key is stated first, because a misspelt key is also reported as missing.

    Parameters
    ----------
    error : pydantic.ValidationError
    is_short : bool
        Whether the job is stated in the short form.
    keys : sequence of str
        Names of the sections of a job.
    """
    faults = [fault for fault in error.errors() if fault["loc"][-1:] != ("str",)]  # "str": a mere name
    faults = faults or error.errors()
    unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]  # a misspelt key is also missing
    fault = (unknown or faults)[0]

    # path of the fault in the form of several tables, and in the user's form
    location = tuple(part for part in fault["loc"] if part not in ("MechanismTable", "str"))
    stated = _stated(location) if is_short else location
    refused = next(iter(fault.get("ctx", {}).get("error", ValueError()).args), None)
    if isinstance(refused, JobError):  # raised by a validator, which does not know the name of the table
        table = ".".join(map(str, stated[:2])) if stated[0] == "tables" else "data"
        return JobError(refused.field.replace("data", table, 1), refused.got, refused.takes, refused.remedy)

    # parts of the location that pydantic adds for alternatives are no keys
    named = [str(part) for part in stated if "[" not in str(part) and "constrained" not in str(part)]
    where = ".".join(named) or "job"
    if fault["type"] == "extra_forbidden":
        known = accepted_keys(location[:-1]) if location[1:] else list(keys)
        remedy = _section_of(str(location[-1])) if is_short else ""
        return JobError(where, "unknown key", ", ".join(known), remedy or nearest(str(location[-1]), known))
    if fault["type"] == "missing":
        return JobError(where, "missing", "a value", "add it to the job file")
    if fault["type"] == "list_type" and "attributes" in named:
        return JobError(where, safe_repr(fault["input"]), "a list of attribute sets, each a list of names",
                        'write attributes = [["age", "sex"], ["age"]]')  # fmt: skip
    if fault["type"] in ("int_type", "float_type") and isinstance(fault["input"], str):
        takes = message_of(fault).removeprefix("it should be ")
        remedy = _without_quotes(named[-1] if named else "it", fault["input"].strip(), fault["type"] == "int_type")
        return JobError(where, safe_repr(fault["input"]), takes, remedy)
    if fault["type"] == "too_short" and not fault["input"]:
        return JobError(where, "nothing", "at least one entry", "add it to the job file")
    got = "" if isinstance(fault["input"], Mapping) else f"{safe_repr(fault['input'])}: "
    return JobError(where, f"{got}{message_of(fault)}", "", "fix it" if got else "")


def _without_quotes(key: str, text: str, whole: bool) -> str:
    """Return the remedy for a number that is stated as a text; with the number, if the text is one.

    `whole` states that the number must be an integer.
    """
    number = NUMBER_TEXT.fullmatch(text)
    if number is None or (whole and number[1]):
        return "write a number, without quotes"
    return f"write {key} = {text}, without quotes"


def _stated(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return where the short form states what [tables.data] and [budget.tables.data] contain."""
    if location[:3] == ("budget", "tables", ONLY):
        return ("budget", *location[3:])
    if location[:2] != ("tables", ONLY):
        return location
    return location[2:] if location[2:3] and location[2] in TABLE_SECTIONS else ("data", *location[2:])
