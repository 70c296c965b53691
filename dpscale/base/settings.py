"""Settings models, and conversion of pydantic's validation errors to dpscale's error format.

A setting is declared by `setting(default, takes, meaning)`; these texts are used in error messages, the JSON schema and
the tables of the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound="Settings")
FIX = "fix it, or leave it out"
WORDS = {
    "greater_than": "above ", "greater_than_equal": "at least ", "less_than": "below ", "less_than_equal": "at most ",
    "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number", "list_type": "a list",
    "string_type": "a text", "bool_type": "true or false", "finite_number": "a finite number",
}  # fmt: skip


class Settings(BaseModel):
    """Table of settings: unknown keys are refused, values are not converted, and instances are immutable."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, strict=True)


def setting(default: Any, takes: str, meaning: str, **limits: Any) -> Any:
    """Declare a field of `Settings`.

    Parameters
    ----------
    default : object
    takes : str
        Accepted values, in words.
    meaning : str
        Description of the setting.
    **limits
        Constraints of pydantic.
    """
    return Field(default, description=meaning, json_schema_extra={"takes": takes}, **limits)


def checked(model: type[Model], given: Mapping[str, Any], table: str, whose: str) -> Model:
    """Return the validated settings of a table. Raises JobError for the first invalid one.

    Parameters
    ----------
    model : type of Settings
    given : mapping
    table : str
        Name of the table, for the message.
    whose : str
        Name of the object that has these settings, for the message.
    """
    known = list(model.model_fields)
    for name in given:
        if name not in known:
            takes = ", ".join(known) or "no options"
            raise JobError(
                f"{table}.{name}", f"given for {whose}", takes, nearest(name, known) if known else "remove it"
            )

    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0]) if fault["loc"] else ""
        raise _refused(f"{table}.{name}" if name else table, fault, takes_of(model, name)) from None


def takes_of(model: type[BaseModel], name: str) -> str:
    """Return the description of the values that a setting accepts; empty if there is none."""
    field = model.model_fields.get(name)
    extra = field.json_schema_extra if field else None
    return str(extra["takes"]) if isinstance(extra, dict) and "takes" in extra else ""


def _refused(where: str, fault: ErrorDetails, takes: str) -> JobError:
    """Return the error of this package for a setting that its model refuses, with the nearest accepted value."""
    refused = next(iter(fault.get("ctx", {}).get("error", ValueError()).args), None)
    if isinstance(refused, JobError):  # raised by a validator
        return refused
    named = fault["type"] == "literal_error" and isinstance(fault["input"], str)
    remedy = nearest(fault["input"], _listed(takes)) if named else FIX
    return JobError(where, safe_repr(fault["input"]), takes or message_of(fault).removeprefix("it should be "), remedy)


def _listed(takes: str) -> list[str]:
    """Return the values that a description lists: "a, b or c (with d)" lists three."""
    return re.split(r", | or ", re.sub(r" \(.*\)", "", takes))


def check_texts(content: object, where: str) -> None:
    """Raise JobError for a text that cannot be stored in a file: with a NUL or a lone surrogate."""
    if isinstance(content, str) and ("\0" in content or any("\ud800" <= letter <= "\udfff" for letter in content)):
        raise JobError(
            where or "job", "a text with a character that cannot be stored in a file", "a text", "remove the character"
        )
    if isinstance(content, Mapping):
        for name, value in content.items():
            check_texts(name, where)
            check_texts(value, f"{where}.{name}".strip("."))
    elif isinstance(content, list | tuple):
        for value in content:
            check_texts(value, where)


def message_of(fault: ErrorDetails) -> str:
    """Return pydantic's message, starting in lower case."""
    if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "it should be a table"
    if fault["type"] in WORDS:
        limit = next((f"{value:g}" for value in fault.get("ctx", {}).values() if isinstance(value, int | float)), "")
        return f"it should be {WORDS[fault['type']]}{limit}"
    message = str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")
    return message[0].lower() + message[1:]


def rows_of(model: type[Settings]) -> Sequence[tuple[str, str, str, Any]]:
    """Return name, accepted values, meaning and default of every setting."""
    fields = model.model_fields.items()
    return [(name, takes_of(model, name), str(field.description or ""), field.default) for name, field in fields]
