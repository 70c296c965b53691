"""Accepted locations of a ledger by file system, from the mounts of the machine."""

from unittest import mock

import psutil
import pytest

import dpscale as dp
from dpscale.ledger import location as ledgerplace
from dpscale.ledger.location import kind_of
from tests.audit.small import write
from tests.messages import refused

MOUNTS = [
    ("/", "ext4"), ("/home", "nfs4"), ("/home/local", "xfs"), ("/mnt/my share", "cifs"), ("/mnt/bucket", "fuse.rclone"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/ledger.sqlite", "ext4"), ("/home/me/l", "nfs4"), ("/homes/l", "ext4"), ("/home/local/l", "xfs"),
     ("/mnt/my share/l", "cifs"), ("/mnt/bucket/a/b/l", "fuse.rclone"), ("/mnt/l", "ext4")],
)  # fmt: skip
def test_kind_of_file_system(path, kind):
    assert kind_of(MOUNTS, path) == kind


def test_last_mount_at_a_path_counts():
    assert kind_of([("/", "rootfs"), ("/", "overlay")], "/l") == "overlay"
    assert kind_of([("/x", "nfs4"), ("/x", "ext4")], "/x/l") == "ext4"
    assert kind_of([("/", "9p")], "/l") == ""
    assert kind_of([("/", "ext4"), ("/mnt/c", "9p")], "/mnt/c/l") == "9p"
    assert kind_of([], "/l") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "ceph", "beegfs", "gpfs"])
def test_job_with_ledger_on_network_is_refused_before_planning(tmp_path, monkeypatch, kind):
    job = write(tmp_path)
    monkeypatch.setattr(ledgerplace, "mounts", lambda: [("/", "ext4"), (str(tmp_path), kind)])
    with refused(dp.JobError) as caught:
        dp.run(job, tmp_path / "run")
    assert (caught.value.field, caught.value.exit_code) == ("privacy.ledger", 2)
    assert not (tmp_path / "run/plan").exists()
    assert not (tmp_path / "ledger.sqlite").exists()


def test_local_disk_and_unknown_mounts_are_accepted(tmp_path, monkeypatch):
    assert ledgerplace.network_kind(str(tmp_path)) == ""
    for silent in (OSError("no such file"), psutil.AccessDenied()):
        monkeypatch.setattr(psutil, "disk_partitions", mock.Mock(side_effect=silent))
        assert ledgerplace.mounts() == []
        assert ledgerplace.network_kind(str(tmp_path)) == ""


def test_mounts_of_this_machine():
    kinds = dict(ledgerplace.mounts())
    assert kinds["/"]
    assert all(isinstance(kind, str) for kind in kinds.values())
