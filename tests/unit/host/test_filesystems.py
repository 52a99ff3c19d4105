"""filesystems: room, and which directories belong to this host alone."""

from mpishare.host.filesystems import is_node_local, room, type_of

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=24684084k
40 27 0:40 / /home rw shared:7 master:2 - nfs4 server:/home rw
41 40 0:41 / /home/me/fast\\040disk rw - xfs /dev/sdb rw
42 27 0:42 / /scratch rw - lustre mgs@tcp:/scratch rw
43 27 0:43 / /twice rw - ext4 /dev/sdc rw
44 43 0:44 / /twice rw - beegfs beegfs_nodev rw
45 27 0:45 / /odd rw - fuse.sshfs me@host: rw
"""


LOCAL = {"/": "ext4", "/none": "ext4", "/dev/shm": "tmpfs", "/dev/shmem": "ext4", "/home/me/fast disk/x": "xfs"}
REMOTE = {"/home/me": "nfs4", "/scratch/job": "lustre", "/twice": "beegfs", "/odd": "fuse.sshfs"}


def test_the_type_of_the_file_system_decides(tmp_path):
    mounts, link = tmp_path / "mountinfo", tmp_path / "link"
    mounts.write_text(MOUNTS)
    link.symlink_to("/scratch/job")
    for directory, system in {**LOCAL, **REMOTE, str(link): "lustre"}.items():
        assert type_of(directory, mounts) == system
        assert is_node_local(directory, mounts) == (directory in LOCAL)
    assert type_of("/", tmp_path / "none") == "unknown"
    assert not is_node_local("/", tmp_path / "none")


def test_room_of_a_directory(tmp_path):
    space = room(str(tmp_path))
    assert space is not None
    assert 0 <= space.free <= space.total
    assert room(str(tmp_path / "missing")) is None
