"""Scratch that is sealed, and gone with who wrote it: killed processes too."""

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
def test_any_part_is_read_back(lengths, data):
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


def test_two_files_of_the_same_numbers_have_nothing_in_common(tmp_path):
    files = [Sealed.new(Use(folder=str(tmp_path))) for _ in range(2)]
    for file in files:
        file.append(np.zeros(1000, np.uint64))
        file.append(np.zeros(1000, np.uint64))
    contents = [path.read_bytes() for path in tmp_path.iterdir()]
    blocks = [content[at : at + 16] for content in contents for at in range(0, len(content), 16)]
    assert len(set(blocks)) == len(blocks) == 2000
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def writer(base, kind):
    """A process that has scratch open, and waits."""
    process = subprocess.Popen([sys.executable, "-c", WRITES, str(base), kind], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == "written\n"
    return process


def test_a_file_without_a_name_leaves_nothing_when_its_process_is_killed(tmp_path):
    process = writer(tmp_path, "nameless")
    assert not list(tmp_path.iterdir())
    held = [link for link in Path(f"/proc/{process.pid}/fd").iterdir() if str(tmp_path) in os.readlink(link)]
    assert held, "it is there for as long as the process is"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_process_goes_with_the_next_and_that_of_a_living_one_stays(tmp_path):
    killed, living = writer(tmp_path, "named"), writer(tmp_path, "named")
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


def test_a_folder_goes_with_an_error_and_one_that_is_being_made_stays(tmp_path):
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


def test_the_end_of_a_use_closes_its_files_whoever_holds_them(tmp_path):
    with used() as mine, used() as other:
        files = [Sealed.new(use, str(tmp_path)) for use in (mine, other)]
        called = [file.append(np.arange(3)) for file in files]
        moved = pickle.loads(pickle.dumps(files[0]))
    with used() as third:
        kept = Sealed.new(third, str(tmp_path))
        assert kept.append(np.arange(3)) == 0
        for file in (*files, moved):
            with pytest.raises(ValueError, match="closed file"):
                file.read(called[0], 0, 3, np.int64)
