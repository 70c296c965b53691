"""The thread limit of BLAS holds for libraries that are loaded while it is in force, and is restored."""

import subprocess
import sys

SCRIPT = """
import os
from threadpoolctl import threadpool_info
import numpy as np
from dpscale.base.numerics import linalg, one_thread

def threads():
    return sorted({own["num_threads"] for own in threadpool_info() if own["user_api"] == "blas"})

before = threads()
with one_thread():
    assert "scipy.linalg" not in __import__("sys").modules
    linalg.qr(np.eye(3))
    inside, libraries = threads(), len([own for own in threadpool_info() if own["user_api"] == "blas"])
    with one_thread():
        pass
    assert threads() == inside
print(before, inside, libraries > 1, threads())
"""


def test_library_that_is_loaded_inside_the_limit_has_one_thread():
    command = [
        sys.executable,
        "-c",
        SCRIPT.replace("import os\n", "import os\nos.environ['OPENBLAS_NUM_THREADS'] = '2'\n"),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[0] == "[2] [1] True [2]"
