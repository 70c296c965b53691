"""Where a ledger may be, by the text of /proc/mounts."""

import pytest

import dpscale as dp
from dpscale.privacy import ledgerplace
from dpscale.privacy.ledgerplace import kind_of
from tests.audit.small import write

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local xfs rw 0 0
//nas/share /mnt/my\\040share cifs rw 0 0
rclone: /mnt/bucket fuse.rclone rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/ledger.sqlite", "ext4"), ("/home/me/l", "nfs4"), ("/homes/l", "ext4"), ("/home/local/l", "xfs"),
     ("/mnt/my share/l", "cifs"), ("/mnt/bucket/a/b/l", "fuse.rclone"), ("/mnt/l", "ext4")],
)  # fmt: skip
def test_the_file_system_of_a_path(path, kind):
    assert kind_of(MOUNTS, path) == kind


def test_the_last_of_two_mounts_at_one_place_counts():
    assert kind_of("a / rootfs rw\nb / overlay rw\n", "/l") == "overlay"
    assert kind_of("none / 9p rw\n", "/l") == ""
    assert kind_of("none / ext4 rw\nC: /mnt/c 9p rw\n", "/mnt/c/l") == "9p"
    assert kind_of("garbled\n\n", "/l") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "ceph", "beegfs", "gpfs"])
def test_a_job_whose_ledger_is_on_a_network_is_refused_before_it_is_planned(tmp_path, monkeypatch, kind):
    job = write(tmp_path)
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
    monkeypatch.setattr(ledgerplace, "MOUNTS", tmp_path / "mounts")
    with pytest.raises(dp.JobError, match=f"{kind}.*local disk of the machine where the driver runs") as caught:
        dp.run(job, tmp_path / "run")
    assert (caught.value.field, caught.value.exit_code) == ("privacy.ledger", 2)
    assert not (tmp_path / "run/plan").exists()
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_local_disk_is_fine_and_so_is_a_system_without_mounts(tmp_path, monkeypatch):
    assert ledgerplace.network_kind(str(tmp_path)) == ""
    monkeypatch.setattr(ledgerplace, "MOUNTS", tmp_path / "absent")
    assert ledgerplace.network_kind(str(tmp_path)) == ""
