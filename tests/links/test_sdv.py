"""SDV metadata of every shape of a job: `to-sdv`, then `from-sdv`, gives its tables, keys and links again."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.job import Job
from tests.links.shapes import ATTRIBUTES, SHAPES, make_frames, private_sides, write_shape

# what metadata cannot state: names of links, bounds, policies, and the mechanisms
Structure = tuple[dict[str, Any], list[tuple[Any, ...]]]


def run_command(*arguments: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def structure(job: Job) -> Structure:
    tables = {name: (job.key(name), one.public) for name, one in job.tables.items()}
    links = [(link.kind, link.parent, link.child, job.ends(link), link.protects, link.via and Path(link.via).stem)
             for link in job.foreign_keys]  # fmt: skip
    return tables, sorted(links, key=str)


def draft_again(
    folder: Path, metadata: Path, public: tuple[str, ...], unit: str = "", sides: tuple[str, ...] = ()
) -> Job:
    """Return the job of a draft, with the domain files and the public attributes of side tables that it asks for."""
    flags = [word for name in public for word in ("--public", name)] + (["--unit", unit] if unit else [])
    text = run_command("job", "from-sdv", metadata, "--data", folder / "data", *flags).stdout
    for name in json.loads(metadata.read_text())["tables"]:
        (folder / f"{name}.domain.toml").write_text(tomli_w.dumps({"attributes": ATTRIBUTES}))
    job = tomllib.loads(text)
    for name in sides:
        job["tables"][name]["public_attributes"] = list(ATTRIBUTES)
    (folder / "draft.toml").write_text(tomli_w.dumps(job))
    return Job.read(folder / "draft.toml")


@pytest.mark.parametrize("name", SHAPES)
def test_structure_survives_round_trip(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    path = write_shape(tmp_path, shape, make_frames(shape, {}, 0), 1.0)
    metadata = tmp_path / "metadata.json"
    metadata.write_text(run_command("job", "to-sdv", path).stdout)
    again = draft_again(tmp_path, metadata, shape.public, shape.unit, tuple(private_sides(shape)))
    assert structure(again) == structure(Job.read(path))
    assert json.loads(run_command("job", "to-sdv", tmp_path / "draft.toml").stdout) == json.loads(metadata.read_text())
    run_command("check", "tables", tmp_path / "draft.toml", "--scheduler", "synchronous")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SHAPES)
def test_draft_can_be_planned(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    path = write_shape(tmp_path, shape, make_frames(shape, {}, 0), 1.0)
    (tmp_path / "metadata.json").write_text(run_command("job", "to-sdv", path).stdout)
    draft_again(tmp_path, tmp_path / "metadata.json", shape.public, shape.unit, tuple(private_sides(shape)))
    run_command("plan", tmp_path / "draft.toml")


def test_metadata_of_composite_keys_are_lists(tmp_path: Path) -> None:
    shape = SHAPES["public composite key"]
    found = json.loads(
        run_command("job", "to-sdv", write_shape(tmp_path, shape, make_frames(shape, {}, 0), 1.0)).stdout
    )
    assert found["tables"]["stop"]["primary_key"] == ["line", "number"]
    assert found["relationships"][1] == {
        "parent_table_name": "stop", "parent_primary_key": ["line", "number"],
        "child_table_name": "visit", "child_foreign_key": ["line", "stop_number"],
    }  # fmt: skip
    assert {"line", "stop_number"} <= set(found["tables"]["visit"]["columns"])


def test_unknown_public_table_is_refused(tmp_path: Path) -> None:
    shape = SHAPES["public parent"]
    path = write_shape(tmp_path, shape, make_frames(shape, {}, 0), 1.0)
    (tmp_path / "metadata.json").write_text(run_command("job", "to-sdv", path).stdout)
    done = run_command("job", "from-sdv", tmp_path / "metadata.json", "--public", "places", code=2)
    assert "did you mean 'place'?" in done.stderr
    assert done.stderr.count("\n") == 1
