"""The tutorial: its Python, files and commands are run in order in an empty directory."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from dpscale.__main__ import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_tutorial_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for kind, file, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)
        elif kind == "toml":
            Path(file).write_text(text)
        else:
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                result = CliRunner().invoke(main, arguments)
                assert (program, result.exit_code) == ("dpscale", 0), f"{line}\n{result.output}"
    assert Path("release/report.html").exists()
    assert Path("smokers-by-age.csv").exists()
