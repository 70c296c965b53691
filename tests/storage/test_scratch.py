"""Encrypted scratch files, which disappear with the process that wrote them, also if it is killed."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpscale.storage.scratch import LOCK, NAME, Memory, Sealed, Use, shared_folder, sweep, used
from tests.messages import refused

WRITES = """
import sys, numpy as np
from dpscale.storage.scratch import Sealed, shared_folder, used
from contextlib import nullcontext
base, named = sys.argv[1], sys.argv[2] == "named"
with shared_folder(base) if named else nullcontext() as folder, used(folder) as use:
    file = Sealed.new(use, base)
    file.append(np.arange(1000))
    print("written", flush=True)
    sys.stdin.read()
"""


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.data())
def test_any_range_is_read_back(lengths, data):
    arrays = [
        np.arange(length, dtype=kind) * 3 for length, kind in zip(lengths, [np.uint64, np.uint32] * 3, strict=False)
    ]
    for store in (Memory(), Sealed.new(Use())):
        called = [store.append(array) for array in arrays]
        number = data.draw(st.integers(0, len(arrays) - 1))
        first = data.draw(st.integers(0, lengths[number]))
        count = data.draw(st.integers(0, lengths[number] - first))
        stores = [store] if isinstance(store, Memory) else [store, pickle.loads(pickle.dumps(store))]
        for one in stores:
            read = one.read(called[number], first, count, arrays[number].dtype)
            np.testing.assert_array_equal(read, arrays[number][first : first + count])
        assert "hidden" in repr(store)


def test_files_with_equal_content_share_no_block(tmp_path):
    files = [Sealed.new(Use(folder=str(tmp_path))) for _ in range(2)]
    for file in files:
        file.append(np.zeros(1000, np.uint64))
        file.append(np.zeros(1000, np.uint64))
    contents = [path.read_bytes() for path in tmp_path.iterdir()]
    blocks = [content[at : at + 16] for content in contents for at in range(0, len(content), 16)]
    assert len(set(blocks)) == len(blocks) == 2000
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def start_writer(base, kind):
    """Start a process that opens a scratch file and waits."""
    process = subprocess.Popen([sys.executable, "-c", WRITES, str(base), kind], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == "written\n"
    return process


def test_unnamed_file_disappears_with_killed_process(tmp_path):
    process = start_writer(tmp_path, "nameless")
    assert not list(tmp_path.iterdir())
    open_files = [link for link in Path(f"/proc/{process.pid}/fd").iterdir() if str(tmp_path) in os.readlink(link)]
    assert open_files, "it is there for as long as the process is"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.iterdir())


def test_folder_of_killed_process_is_swept_and_of_living_one_stays(tmp_path):
    killed, living = start_writer(tmp_path, "named"), start_writer(tmp_path, "named")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(list(tmp_path.glob(f"{NAME}*"))) == 2
    with shared_folder(str(tmp_path)) as own:
        assert Path(own).stat().st_mode & 0o777 == 0o700
        others = [folder for folder in tmp_path.glob(f"{NAME}*") if folder != Path(own)]
        assert len(others) == 1
        assert list(others[0].iterdir())
    living.communicate("")
    assert living.returncode == 0
    assert not list(tmp_path.iterdir())


def test_folder_is_removed_on_error_and_new_folder_stays(tmp_path):
    with pytest.raises(FileExistsError), shared_folder(str(tmp_path)) as own:
        Path(own, LOCK).mkdir()
    assert not list(tmp_path.iterdir())
    young = tmp_path / f"{NAME}young"
    young.mkdir()
    sweep(str(tmp_path))
    assert young.exists()
    (young / LOCK).touch()
    sweep(str(tmp_path))
    assert not young.exists()


def test_end_of_use_closes_all_its_files(tmp_path):
    with used() as mine, used() as other:
        files = [Sealed.new(use, str(tmp_path)) for use in (mine, other)]
        called = [file.append(np.arange(3)) for file in files]
        moved = pickle.loads(pickle.dumps(files[0]))
    with used() as third:
        file_of_third = Sealed.new(third, str(tmp_path))
        assert file_of_third.append(np.arange(3)) == 0
        for file in (*files, moved):
            with refused(ValueError):
                file.read(called[0], 0, 3, np.int64)
