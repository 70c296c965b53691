"""What a scheduler serves as plain HTTP to anybody: with the configuration of certificates.py, that it is alive."""

import urllib.error
import urllib.request

import pytest

from tests.cluster.machines import free_port, machines
from tests.cluster.waiting import eventually

TELLING = ["info/main/workers.html", "info/main/logs.html", "json/identity.json", "metrics", "status"]


def status(port, page):
    """The answer's code; None where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@pytest.mark.parametrize("configured", [True, False])
def test_pages_of_tasks_and_logs_are_off(tmp_path, certificates, configured):
    """Without the configuration they are there, with --no-dashboard too."""
    port = free_port()
    with machines(tmp_path, certificates / "dask.yaml" if configured else None) as made:
        made.scheduler("--dashboard-address", f"127.0.0.1:{port}")
        assert eventually(lambda: status(port, "health") == 200)
        found = {page: status(port, page) for page in TELLING}
    assert set(found.values()) == {404} if configured else found["info/main/logs.html"] == 200
