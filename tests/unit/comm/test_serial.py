"""One rank without MPI: the same program prints the same with and without mpi4py."""

import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

from mpishare.comm import serial
from tests.blackbox.launch import PROGRAMS, ROOT, environment


def run(*args, **environ):
    line = [sys.executable, "-m", f"{PROGRAMS}.alone", *map(str, args)]
    return subprocess.run(line, cwd=ROOT, env=environment(environ), capture_output=True, text=True, timeout=100)


def test_the_same_with_and_without_mpi(tmp_path):
    outputs = []
    for option in ([], ["--without-mpi"]):
        folder = tmp_path / str(len(option))
        folder.mkdir()
        result = run(folder, *option)
        assert result.returncode == 0, result.stderr
        outputs.append(result.stdout)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_that_a_launcher_started_together(tmp_path, name):
    """Each would do the whole work."""
    result = run(tmp_path, "--without-mpi", **{name: "3"})
    assert result.returncode == 1
    assert "LaunchError: 3 processes were started together, but there is no MPI here" in result.stderr
    assert "install mpi4py" in result.stderr
    assert run(tmp_path, "--without-mpi", **{name: "3", "MPISHARE_SINGLETONS": "1"}).returncode == 0


@pytest.fixture(params=["mpishare.comm.serial", "mpi4py.MPI"])
def mpi(request):
    return import_module(request.param)


@pytest.fixture
def comm(mpi):
    comm = mpi.COMM_SELF.Dup()
    yield comm
    comm.Free()


def test_messages_wait_in_their_order(mpi, comm):
    for tag, value in ((3, 5), (3, 6), (4, 7)):
        comm.Isend(np.array([value]), 0, tag).Wait()
    received, status = np.zeros(1, int), mpi.Status()
    assert [tag for tag in (2, 3, 4) if comm.Iprobe(0, tag)] == [3, 4]
    comm.Probe(mpi.ANY_SOURCE, mpi.ANY_TAG, status)
    values = []
    for tag in (4, mpi.ANY_TAG, 3):
        comm.Recv(received, mpi.ANY_SOURCE, tag, status)
        values.append((int(received[0]), status.tag))
    assert values == [(7, 4), (5, 3), (6, 3)]


def test_a_receive_that_begins_first(mpi, comm):
    received, other = np.zeros(2, int), np.zeros(1, int)
    requests = [comm.Irecv(received[:1], 0, 1), comm.Irecv(received[1:], 0, 2)]
    comm.Send(np.array([9]), 0, 3)
    comm.Recv(other, 0, 3)
    comm.Send(np.array([8]), 0, 2)
    assert (requests[1].Test(), other[0], received[1]) == (True, 9, 8)
    assert not mpi.Request.Testall(requests)
    requests[0].Cancel()
    status = mpi.Status()
    requests[0].Wait(status)
    assert status.Is_cancelled()


def test_what_would_wait_for_ever():
    comm, received = serial.COMM_SELF.Dup(), np.zeros(1)
    for call in (comm.Probe, comm.Irecv(received).Wait, lambda: comm.Recv(received)):
        with pytest.raises(serial.Exception, match="this rank is alone"):
            call()


def test_calls_of_objects_by_the_names_of_their_arguments(comm):
    """As programs make them beside those of mpishare."""
    assert comm.bcast("a", root=0) == comm.scatter(["a"], root=0) == comm.reduce("a", root=0) == "a"
    assert comm.gather(sendobj=1, root=0) == comm.allgather(sendobj=1) == comm.alltoall(sendobj=[1]) == [1]
    assert comm.allreduce(sendobj=3) == 3
    comm.Bcast(np.zeros(2), root=0)
    duplicate = comm.Split(color=1, key=0)
    assert duplicate.size == 1
    duplicate.Free()


WITHOUT_LINUX = """
import os, socket, sys
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fallocate", "O_TMPFILE"):
    hasattr(os, name) and delattr(os, name)
del socket.SO_PEERCRED
sys.modules["mpi4py"] = None
import numpy as np, mpishare as ms
assert ms.share(np.zeros(1 << 20)).sum() == ms.zeros(3).sum() == 0
assert ms.allreduce(np.array([1, 5]), "max").tolist() == [1, 5]
print(ms.report())
"""


def test_one_rank_works_where_python_lacks_the_names_of_linux():
    subprocess.run([sys.executable, "-c", WITHOUT_LINUX], cwd=ROOT, env=environment({}), timeout=100, check=True)
