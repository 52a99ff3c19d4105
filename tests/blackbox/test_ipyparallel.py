"""push of ipyparallel: from one client to the engines of an MPI job, on two pretend nodes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ipyparallel import Client, interactive
from ipyparallel.error import RemoteError

import mpishare as ms
from mpishare.cli import run as launcher
from mpishare.compat.ipyparallel import push
from tests.blackbox.launch import PROGRAMS, environment, nothing_left, run
from tests.blackbox.test_manual import CODE, NOTEBOOK, PAGES, is_shown
from tests.processes import of_processes, wait_until

ENGINES = 3


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Starts the engines by the command of the manual; the settings with which a client finds them."""
    folder = tmp_path_factory.mktemp("ipython")
    profile = folder / "profile_default"
    profile.mkdir()
    (profile / "ipcontroller_config.py").write_text(
        "c.HeartMonitor.period = 500  # ms; an engine is there at its second beat"
    )
    [command] = [line[2:] for line in PAGES[NOTEBOOK].splitlines() if line.startswith("$ ipcluster")]
    with nothing_left() as kept, (folder / "log").open("w") as log:
        kept = {"IPYTHONDIR": str(folder), "MPISHARE_NODES": "block:2", "MPISHARE_TIMEOUT": "60", **kept}
        environ = environment(kept)
        environ |= launcher.additions(["-n", str(ENGINES)], environ)
        with subprocess.Popen(command.split(), env=environ, stdout=log, stderr=log) as ipcluster:
            yield kept
            ipcluster.send_signal(signal.SIGINT)
        wait_until(lambda: not living_with(folder), 60, lambda: living_with(folder))


@pytest.fixture(scope="module")
def client(settings):
    folder = Path(settings["IPYTHONDIR"])
    file = folder / "profile_default/security/ipcontroller-client.json"
    wait_until(file.exists, 120, (folder / "log").read_text)
    with Client(str(file)) as connected:
        connected.wait_for_engines(ENGINES, timeout=120)
        yield connected


def living_with(folder):
    """The processes that have a folder in their environment."""
    own, name = Path("/proc", str(os.getpid())), os.fsencode(folder)
    return of_processes(lambda process: process != own and name in (process / "environ").read_bytes() and process)


def test_the_cells_of_the_manual(client, settings, tmp_path):
    blocks = CODE.findall(PAGES[NOTEBOOK])
    file = tmp_path / "cells.json"
    file.write_text(json.dumps([code for code, _ in blocks]))
    ended = run([sys.executable, "-m", f"{PROGRAMS}.notebook", str(file)], settings)
    for (code, shown), output in zip(blocks, json.loads(ended.stdout.splitlines()[-1]), strict=True):
        assert is_shown(output, shown), f"{code}\nprints\n{output}"


ARRAYS = {
    "large": np.arange(1 << 20),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(10)[::3],
    "times": np.array(["2026-11-28"], "M8[s]"),
    "aligned": np.zeros(3, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "scalar": np.array(7),
    "nothing": np.empty((0, 3)),
}


@interactive
def seen(names):
    """On an engine: what its arrays of these names are, whether it may write to them, and the bytes of its node."""
    import mpishare

    arrays = [globals()[name] for name in names]
    layouts = [(array.dtype.isalignedstruct, array.dtype.descr, array.shape, array.flags.fnc) for array in arrays]
    is_writable = {array.flags.writeable for array in arrays}
    return layouts, [array.tobytes("A") for array in arrays], is_writable, mpishare.report().bytes_shared


def test_arrays_arrive_once_per_node_and_as_they_are(client):
    push(client[::-1], ARRAYS)
    sent = [array if array.flags.forc else array.copy() for array in ARRAYS.values()]
    layouts = [(array.dtype.isalignedstruct, array.dtype.descr, array.shape, array.flags.fnc) for array in sent]
    for found, contents, is_writable, bytes_shared in client[:].apply_sync(seen, [*ARRAYS]):
        assert found == layouts
        assert contents == [array.tobytes("A") for array in sent]
        assert is_writable == {False}
        assert ARRAYS["large"].nbytes < bytes_shared < 1.1 * ARRAYS["large"].nbytes
    client[:].execute(f"del {', '.join(ARRAYS)}", block=True)
    assert client[:].apply_sync(seen, [])[0][-1] < 1000  # what the manual's cells made


def test_arrays_that_engines_may_write(client):
    push(client, {"counts": np.zeros(ENGINES)}, writable=True)
    client[:].execute("counts[mpi_rank] = 1; import mpishare; mpishare.fence()", block=True)
    assert [counts.tolist() for counts in client[:]["counts"]] == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


class NotUnpickled:
    """Unpickling it raises."""

    def __reduce__(self):
        return int, ("none",)


def test_an_error_of_an_engine_is_raised_once(client):
    with pytest.raises(RemoteError, match="writable is 3"):
        push(client, {"array": ARRAYS["large"]}, writable=3)  # type: ignore[arg-type]
    with pytest.raises(RemoteError, match=r"^\[0:apply\] ValueError: invalid literal for int"):
        push(client, {"number": NotUnpickled()})
    push(client, {"number": 1})  # the engines are in step
    assert client[:]["number"] == [1] * ENGINES


@pytest.mark.parametrize("targets", [[0, 1], 0], ids=["two", "one"])
def test_engines_that_are_a_part_of_the_job(client, targets):
    with pytest.raises(ms.ArgumentError, match="not all ranks of one MPI job: engine 0 is rank 0 of 3"):
        push(client[targets], {"array": ARRAYS["large"]})


def test_a_name_that_is_no_variable(client):
    with pytest.raises(ms.ArgumentError, match=r"'a\.b' cannot be the name"):
        push(client, {"a.b": 1})
