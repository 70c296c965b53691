"""HTTP pages of a scheduler with the configuration of certificates.py: only the health page is served."""

import urllib.error
import urllib.request

import pytest

from tests.cluster.machines import free_port, machines
from tests.cluster.waiting import eventually

PRIVATE_PAGES = ["info/main/workers.html", "info/main/logs.html", "json/identity.json", "metrics", "status"]


def http_status(port, page):
    """Return the status code of a page, or None if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@pytest.mark.parametrize("configured", [True, False])
def test_task_and_log_pages_are_disabled(tmp_path, certificates, configured):
    """Without the configuration these pages exist, also with --no-dashboard."""
    port = free_port()
    with machines(tmp_path, certificates / "dask.yaml" if configured else None) as made:
        made.scheduler("--dashboard-address", f"127.0.0.1:{port}")
        assert eventually(lambda: http_status(port, "health") == 200)
        found = {page: http_status(port, page) for page in PRIVATE_PAGES}
    assert set(found.values()) == {404} if configured else found["info/main/logs.html"] == 200
