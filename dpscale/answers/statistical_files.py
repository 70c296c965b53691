"""Files that statistical offices load: PC-Axis, JSON-stat 2.0 and SDMX-CSV 2.0, of published tables.

A table is a cube: a dimension for each attribute, and measures for each cell. Every format has the value, its 95 %
interval and standard error, notes, and the flags of the publication, in its own way:

    px         a dimension of measures; values that are not published are ".."; a measure is 1 for unreliable cells
    json-stat  a dimension of measures with the role metric; `status` has the flags of OBS_STATUS by cell
    sdmx-csv   a row for each cell: OBS_VALUE, attributes for interval and error, and OBS_STATUS; codelists.csv has the
               labels of codes

OBS_STATUS is U for unreliable values, Q for values that are not published, and A for all others (code list of SDMX).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.answers.published_values import COLUMNS, UNRELIABLE, label_column
from dpscale.base.arrow import pa, pc, without_dictionaries
from dpscale.storage.files import write_whole

MEASURES = ("value", "low", "high", "std_error")  # in this order, as far as a table has them
SHOWN = {"value": "value", "low": "lower end of the 95 % interval", "high": "upper end of the 95 % interval",
         "std_error": "standard error"}  # fmt: skip
NORMAL, UNSURE, HIDDEN = "A", "U", "Q"
AGENCY, VERSION = "DPSCALE", "1.0"
CODE = re.compile(r"[A-Za-z0-9_@$\-]+")
MEASURE = "measure"
LINE = 200  # characters of a line of PC-Axis, which has at most 256
MOST_DECIMALS = 6  # digits after the point of the measures of a table


@dataclass(frozen=True, eq=False)
class Dimension:
    """Attribute of a cube.

    Attributes
    ----------
    name : str
    title : str
        For readers.
    values : sequence of str
        As other files have them, in the order of the cells.
    words : mapping of str to str
        Labels for readers by value.
    """

    name: str
    title: str
    values: Sequence[str]
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """Labels for readers."""
        return [self.words.get(value, value) for value in self.values]

    @property
    def codes(self) -> list[str]:
        """Codes of the values: the values themselves, or numbers from 0 if one of them is no code."""
        plain = all(CODE.fullmatch(value) for value in self.values)
        return list(self.values) if plain else [str(number) for number in range(len(self.values))]


@dataclass(frozen=True, eq=False)
class Cube:
    """Published table over all combinations of its dimensions.

    Attributes
    ----------
    name : str
        File name without an ending.
    title, unit : str
    dimensions : sequence of Dimension
    measures : mapping of str to ndarray of float, one axis for each dimension
        Not a number where nothing is published.
    status : ndarray of str
        NORMAL, UNSURE or HIDDEN.
    notes : sequence of str
    """

    name: str
    title: str
    unit: str
    dimensions: Sequence[Dimension]
    measures: Mapping[str, Any]
    status: Any
    notes: Sequence[str]

    @property
    def decimals(self) -> int:
        """Number of digits after the point that the measures have."""
        known = np.concatenate([values[np.isfinite(values)].reshape(-1) for values in self.measures.values()])
        return next((digits for digits in range(MOST_DECIMALS) if (np.round(known, digits) == known).all()),
                    MOST_DECIMALS)  # fmt: skip


def cube_of(
    name: str, table: pa.Table, title: str, unit: str, notes: Sequence[str], known: Mapping[str, Dimension]
) -> Cube:
    """Return a published table as a cube.

    `places` has the position of each row in every dimension; a table without attributes is one cell.

    Cells without a row in the table stay nan, and are HIDDEN like those whose value is nan. A count or value is the
    measure "value".

    Parameters
    ----------
    name : str
        File name without an ending.
    table : pyarrow.Table
        Labels of the attributes; `count` or `value`, `std_error` and `flag`; `low` and `high` if there are intervals.
    title, unit : str
    notes : sequence of str
    known : mapping of str to Dimension
        Titles and labels of attributes by name.
    """
    plain = without_dictionaries(table)
    names = plain.column_names
    value = "value" if "value" in names else "count"
    label_columns = [column for column in names if column not in COLUMNS]
    columns = [coded(table[column]) for column in label_columns]
    by_column = {label_column(attribute): dimension for attribute, dimension in known.items()}
    dimensions = [replace(by_column.get(column, Dimension(column, column, ())), values=values)
                  for column, (values, _) in zip(label_columns, columns, strict=True)]  # fmt: skip
    shape = tuple(len(dimension.values) for dimension in dimensions)
    places = tuple(codes for _, codes in columns)
    column_of = {"value": value} | {measure: measure for measure in MEASURES[1:] if measure in names}

    def cells(column: str) -> Any:
        """Return a column as an array with an axis for each dimension; cells without a row or a finite number are nan.

        A standard deviation whose estimate is 0 has an infinite standard error.
        """
        filled = np.full(shape, np.nan)
        figures = plain[column].cast(pa.float64()).to_numpy(zero_copy_only=False)
        filled[places if label_columns else ...] = figures if label_columns else figures[0]
        return np.where(np.isfinite(filled), filled, np.nan) + 0.0  # no negative zero

    measures = {measure: cells(column) for measure, column in column_of.items()}
    unsure = np.zeros(shape, bool)
    marked = pc.equal(plain["flag"], UNRELIABLE).to_numpy(zero_copy_only=False)
    unsure[places if label_columns else ...] = marked if label_columns else marked[0]
    status = np.where(np.isnan(measures["value"]), HIDDEN, np.where(unsure, UNSURE, NORMAL))
    return Cube(name=name, title=title, unit=unit, dimensions=dimensions, measures=measures, status=status, notes=notes)


def coded(column: pa.ChunkedArray) -> tuple[list[str], Any]:
    """Return the labels of a column in their order, and the place of each row among them.

    The places are numbers from 0; a null has the label "".
    """
    if pa.types.is_dictionary(column.type):
        unified = column.unify_dictionaries().combine_chunks()
        return [str(label) for label in unified.dictionary.to_pylist()], unified.indices.to_numpy(zero_copy_only=False)
    values = column.to_pylist()
    order = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return ["" if value is None else str(value) for value in order], np.array(
        [order[value] for value in values], np.int64
    )


def write_px(folder: Path, cubes: Sequence[Cube], source: str) -> None:
    """Write a PC-Axis file for each cube."""
    for cube in cubes:
        write_whole(folder / f"{cube.name}.px", px_text(cube, source).encode())


def px_text(cube: Cube, source: str) -> str:
    """Return a cube in PC-Axis: dimensions in the stub, measures in the heading.

    The stub are the dimensions by which lines are ordered, the heading those within a line. UNSURE marks unreliable
    cells, which have the measure `flag` 1. A missing value is "..".
    """
    unsure = {"flag": np.where(cube.status == UNSURE, 1.0, 0.0)}
    measures = {**cube.measures, **unsure}
    shown = [*(SHOWN[name] for name in cube.measures), "unreliable (1) or not (0)"]
    heading, *stub = _unique([MEASURE, *(dimension.title for dimension in cube.dimensions)])
    named = list(zip(stub, cube.dimensions, strict=True))
    lines = [
        'CHARSET="ANSI";', 'AXIS-VERSION="2013";', 'CODEPAGE="utf-8";', 'LANGUAGE="en";',
        _px("DECIMALS", cube.decimals), _px("MATRIX", cube.name[:20]), _px("SUBJECT-CODE", "DP"),
        _px("SUBJECT-AREA", "Differentially private tables"),
        _px("TITLE", cube.title), _px("DESCRIPTION", cube.title), _px("CONTENTS", cube.title), _px("UNITS", cube.unit),
        *([_px("STUB", *stub)] if stub else []), _px("HEADING", heading),
        *(_px(f'VALUES("{title}")', *_unique(dimension.labels)) for title, dimension in named),
        _px(f'VALUES("{heading}")', *shown),
        *(_px(f'CODES("{title}")', *_unique(dimension.codes)) for title, dimension in named),
        _px(f'CODES("{heading}")', *measures),
        _px("SOURCE", source), _px("NOTEX", "#".join(cube.notes)), "DATA=",
    ]  # fmt: skip
    # PC-Axis has the heading last, so each line has all measures of a cell
    rows = np.stack([values.reshape(-1) for values in measures.values()], axis=1)
    places = cube.decimals
    for row in rows:
        lines.append(" ".join('".."' if np.isnan(figure) else f"{figure:.{places}f}" for figure in row))
    return "\r\n".join(lines) + ";\r\n"


def _px(keyword: str, *values: Any) -> str:
    """Return a keyword with its values; a long text is a sequence of parts, and a list has lines.

    A line of PC-Axis has at most LINE characters, and longer texts are several quoted strings.
    """
    if len(values) == 1 and isinstance(values[0], int):
        return f"{keyword}={values[0]};"
    texts = [_quoted(str(value)) for value in values]
    parts = ["\r\n".join(f'"{text[at : at + LINE]}"' for at in range(0, max(len(text), 1), LINE)) for text in texts]
    lines, used = [keyword + "="], len(keyword)
    for number, part in enumerate(parts):
        ended = part + ("," if number < len(parts) - 1 else ";")
        if used + len(ended) > LINE and used:
            lines.append("")
            used = 0
        lines[-1] += ended
        used += len(ended)
    return "\r\n".join(lines)


def _quoted(text: str) -> str:
    return " ".join(text.replace('"', "'").replace(";", ",").split())


def _unique(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts that PC-Axis distinguishes: in one line each, and numbered where they are equal.

    Texts are cut to LINE - 10 characters, which leaves room for the number.
    """
    seen = set[str]()
    for text in texts:
        cut = _quoted(text)[: LINE - 10]
        named, number = cut, 2
        while named in seen:
            named, number = f"{cut} ({number})", number + 1
        seen.add(named)
        yield named


def write_json_stat(folder: Path, cubes: Sequence[Cube], source: str) -> None:
    """Write a JSON-stat 2.0 dataset for each cube."""
    for cube in cubes:
        text = json.dumps(json_stat(cube, source), ensure_ascii=False, allow_nan=False)
        write_whole(folder / f"{cube.name}.json", text.encode())


def json_stat(cube: Cube, source: str) -> dict[str, Any]:
    """Return a cube as a JSON-stat 2.0 dataset; measures are the last dimension.

    `cube.measures` has the values of each measure, and `cube.status` a mark of each cell, which is omitted if NORMAL.
    Values are in row-major order with the measure as last axis; missing ones are null.
    """
    names = [dimension.name for dimension in cube.dimensions]
    metric = MEASURE
    # an attribute may have the name of the dimension of measures
    while metric in names:
        metric += "_"
    dimensions = {}
    for dimension in cube.dimensions:
        labels = dict(zip(dimension.codes, dimension.labels, strict=True))
        dimensions[dimension.name] = _category(dimension.title, labels)
    dimensions[metric] = _category("measure", {name: SHOWN[name] for name in cube.measures})
    unit = {"decimals": cube.decimals, "label": cube.unit}
    dimensions[metric]["category"]["unit"] = dict.fromkeys(cube.measures, unit)
    values = np.stack([of_measure.reshape(-1) for of_measure in cube.measures.values()], axis=1).reshape(-1)
    marked = np.repeat(cube.status.reshape(-1), len(cube.measures))
    return {
        "version": "2.0",
        "class": "dataset",
        "label": cube.title,
        "source": source,
        "note": list(cube.notes),
        "role": {"metric": [metric]},
        "id": [*names, metric],
        "size": [*(len(dimension.labels) for dimension in cube.dimensions), len(cube.measures)],
        "dimension": dimensions,
        "value": [None if np.isnan(value) else int(value) if value == int(value) else float(value)
                  for value in values.tolist()],
        "status": {str(place): str(marked[place]) for place in np.flatnonzero(marked != NORMAL).tolist()},
    }  # fmt: skip


def _category(label: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a dimension of JSON-stat with its labels by code."""
    return {"label": label, "category": {"index": list(labels), "label": dict(labels)}}


def write_sdmx(folder: Path, cubes: Sequence[Cube], source: str) -> None:
    """Write an SDMX-CSV 2.0 file for each cube, and the labels of all codes in codelists.csv."""
    rows: list[Sequence[str]] = [("table", "dimension", "title", "code", "label")]
    for cube in cubes:
        write_whole(folder / f"{cube.name}.csv", sdmx_text(cube, source).encode())
        for component, dimension in zip(_components(cube), cube.dimensions, strict=True):
            coded = zip(dimension.codes, dimension.labels, strict=True)
            rows += [(cube.name, component, dimension.title, code, label) for code, label in coded]
    write_whole(folder / "codelists.csv", _csv_text(rows).encode())


def sdmx_text(cube: Cube, source: str) -> str:
    """Return a cube in SDMX-CSV 2.0: a row for each cell.

    `_components` are the identifiers of the dimensions, and "I" is the action of an insertion. Ends and errors are
    attributes of the observation, if the cube has them.
    """
    attributes = {"low": "CONF_LOW", "high": "CONF_HIGH", "std_error": "STD_ERROR"}
    known = [name for name in attributes if name in cube.measures]
    names = list(_components(cube))
    head = ["STRUCTURE", "STRUCTURE_ID", "ACTION", *names, "OBS_VALUE", "OBS_STATUS",
            *(attributes[name] for name in known), "UNIT_MEASURE", "TITLE", "SOURCE"]  # fmt: skip
    flow = f"{AGENCY}:{_component(cube.name)}({VERSION})"
    measures = (cube.measures[name] for name in ("value", *known))
    columns = [values.reshape(-1).tolist() for values in measures]
    status = cube.status.reshape(-1).tolist()
    places = product(*(dimension.codes for dimension in cube.dimensions))
    rows = [
        [
            "dataflow",
            flow,
            "I",
            *codes,
            _number(values[0]),
            mark,
            *map(_number, values[1:]),
            cube.unit,
            cube.title,
            source,
        ]
        for codes, mark, *values in zip(places, status, *columns, strict=True)
    ]
    return _csv_text([head, *rows])


def _number(value: float) -> str:
    return "" if np.isnan(value) else str(int(value)) if value == int(value) else repr(value)


def _component(name: str) -> str:
    """Return a name as an identifier of SDMX: letters, digits and underscores, not a digit first."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_").upper() or "X"
    return plain if plain[0].isalpha() else f"T_{plain}"


def _components(cube: Cube) -> Iterator[str]:
    """Yield the identifiers of the dimensions, which differ from those of the other columns."""
    seen = {"STRUCTURE", "STRUCTURE_ID", "ACTION", "OBS_VALUE", "OBS_STATUS", "CONF_LOW", "CONF_HIGH", "STD_ERROR",
            "UNIT_MEASURE", "TITLE", "SOURCE"}  # fmt: skip
    for dimension in cube.dimensions:
        plain = _component(dimension.name)
        while plain in seen:
            plain += "_"
        seen.add(plain)
        yield plain


def _csv_text(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


STATISTICAL = {"px": write_px, "json-stat": write_json_stat, "sdmx-csv": write_sdmx}
