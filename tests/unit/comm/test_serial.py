"""One rank without MPI: the same program prints the same with and without mpi4py."""

import json
import re
import subprocess
import sys
from importlib import import_module

import mpi4py
import numpy as np
import pytest

from mpishare.comm import serial
from tests.blackbox.launch import PROGRAMS, ROOT, environment

ALONE = "-m", f"{PROGRAMS}.alone"


def run(*args, status=0, **environ):
    """What Python prints to stdout and to stderr."""
    line = [sys.executable, *map(str, args)]
    ended = subprocess.run(line, cwd=ROOT, env=environment(environ), capture_output=True, text=True, timeout=100)
    assert ended.returncode == status, ended.stderr
    return ended.stdout, ended.stderr


def test_the_same_with_and_without_mpi(tmp_path):
    folders = tmp_path / "with", tmp_path / "without"
    for folder in folders:
        folder.mkdir()
    assert run(*ALONE, folders[0])[0] == run(*ALONE, folders[1], "--without-mpi")[0]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_that_a_launcher_started_together(tmp_path, name):
    """Each would do the whole work."""
    _, errors = run(*ALONE, tmp_path, "--without-mpi", status=1, **{name: "3"})
    assert "LaunchError: 3 processes were started together, but there is no MPI here" in errors
    assert "install mpi4py" in errors
    run(*ALONE, tmp_path, "--without-mpi", **{name: "3", "MPISHARE_SINGLETONS": "1"})


HAS_MPI = "import sys; sys.modules.update({0}); import mpishare as ms; print(ms.HAS_MPI, 'mpi4py.MPI' in sys.modules)"


WITHOUT = [("", None, True), ("", "/none", False), ("mpi4py=None", None, False)]
"""MPI, mpi4py without a library, no mpi4py."""


@pytest.mark.parametrize(("modules", "library", "has_mpi"), WITHOUT)
def test_whether_there_is_mpi_is_found_without_starting_it(modules, library, has_mpi):
    if library and mpi4py.__version__ < "4.1":
        pytest.skip("mpi4py looks for its library since version 4.1")
    settings = {} if library is None else {"MPI4PY_LIBMPI": library}
    assert run("-c", HAS_MPI.format(modules), **settings)[0] == f"{has_mpi} False\n"


def test_info_says_why_there_is_no_mpi():
    program = "import sys; sys.modules['mpi4py'] = None; from mpishare.cli import main; main(['info'])"
    verdict = run("-c", program)[0].splitlines()[0]
    assert verdict.startswith("OK: MPI is none, so this process is one rank: import of mpi4py halted")


MISSING = {
    "Compare": ["test_comm.testCompare", "test_comm.testIDup"],
    "communicators of groups": ["test_comm.testCreate", "test_comm.testCreateGroup"],
    "Alltoallw": [f"test_cco_{kind}vec.testAlltoallw{name}" for kind in ("", "nb_") for name in ("", "2", "Bottom")],
    "derived datatypes": ["test_cco_buf.testBcastTypeIndexed", "test_cco_nb_buf.testBcastTypeIndexed"],
    "persistent requests": ["test_p2p_buf.testPersistent", "test_p2p_buf.testProcNullPersistent"],
    "Info": [f"test_comm.test{name}" for name in ("DupWithInfo", "GetSetInfo", "IDupWithInfo", "PyProps")],
    "Info, to split": [f"test_comm.testSplitType{name}" for name in ("HWGuided", "HWUnguided", "ResourceGuided")],
    "copies of handles": ["test_comm.testConstructor", "test_p2p_buf.testConstructor", "test_p2p_obj.testCommLock"],
    "pickles of handles": ["test_comm.testPickle"],
    "other ways to get a communicator": ["test_comm.testCreateFromGroup", "test_comm.testGetParent"],
    "memory of MPI, for sending": ["test_comm.testBuffering", "test_msgspec.testBuffer"],
    "NumPy takes the code 0 for a bool": ["test_msgspec.testMessageBad"],
}
"""What mpi4py's tests of one rank need that the serial communicator has not."""


def test_mpi4pys_own_tests_of_one_rank():
    output, errors = run("-m", f"{PROGRAMS}.mpi4py_tests")
    outcome = json.loads(output)
    failed = {re.sub(r"\.\w+\.", ".", name) for name in outcome["failed"]}
    assert failed == {name for names in MISSING.values() for name in names}, errors
    assert (outcome["run"], len(outcome["failed"])) == (321, 60), errors


def test_the_manual_lists_all_calls():
    page = (ROOT / "docs/reference/serial.md").read_text()
    listed = re.findall(r"`(\w+)`", page.partition("| calls | names |")[2].partition("\n\n")[0])
    assert sorted(listed) == sorted(name for name in dir(serial.COMM_SELF) if name[0] != "_" and name != "handle")


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


class Tensor:
    """What torch's tensors are on the CPU: they have no buffer protocol."""

    def __init__(self, array):
        self.array = array
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def test_tensors():
    """NumPy 1 can only read them."""
    received = np.zeros(3, int)
    serial.COMM_SELF.Allreduce(Tensor(np.arange(3)), received)
    assert received.tolist() == [0, 1, 2]


def test_errors_have_their_class(mpi, comm):
    for name, call in (
        ("ERR_RANK", lambda: comm.Send(b"", dest=1)),
        ("ERR_RANK", lambda: comm.recv(source=1)),
        ("ERR_ROOT", lambda: comm.Gather(b"", bytearray(0), root=1)),
        ("ERR_TAG", lambda: comm.send(1, dest=0, tag=-3)),
    ):
        with pytest.raises(mpi.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == getattr(mpi, name)


def test_a_message_that_is_too_long_is_an_error_of_its_receive():
    request = serial.COMM_SELF.Irecv(bytearray(1))
    serial.COMM_SELF.Send(b"ab", 0)
    with pytest.raises(serial.Exception) as raised:
        request.Wait()
    assert raised.value.Get_error_class() == serial.ERR_TRUNCATE


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
import sys
sys.modules["mpi4py"] = None
import tests.no_linux, numpy as np, mpishare as ms
assert ms.share(np.zeros(1 << 20)).sum() == ms.zeros(3).sum() == 0
assert ms.allreduce(np.array([1, 5]), "max").tolist() == [1, 5]
print(ms.report())
"""


def test_one_rank_works_where_python_lacks_the_names_of_linux():
    run("-c", WITHOUT_LINUX)
