"""Tokens of the check of file access: those of live drivers stay, those of killed drivers are removed."""

import os
import subprocess
import sys

from dpscale.engine import admission

KILLED = """import os, sys
from pathlib import Path
from dpscale.engine import admission
with admission._written_token(Path(sys.argv[1]), b"0" * 16):
    os._exit(9)
"""


def test_second_check_of_a_process_keeps_the_token_of_the_first(tmp_path):
    with admission._written_token(tmp_path, b"1" * 16) as one:
        with admission._written_token(tmp_path, b"2" * 16) as other:
            assert one.read_bytes() == b"1" * 16
            assert other.read_bytes() == b"2" * 16
        assert one.exists()
    assert os.listdir(tmp_path) == []


def test_token_of_a_killed_process_is_removed_by_the_next_check(tmp_path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode == 9
    left = list(tmp_path.iterdir())
    assert len(left) == 2  # the token and its lock
    with admission._written_token(tmp_path, b"1" * 16):
        assert not any(path.exists() for path in left)
