"""Too little room: in /dev/shm, in the temporary folder, in memory, in the table of open files."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.blackbox.launch import Ended, nothing_left, run

HEAD = """
import os, numpy as np, mpishare as ms
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank = comm.rank
"""


def run_with(setup: str, code: str, **environ: str) -> Ended:
    """Runs code on 2 ranks in a mount namespace of its own, after lines of shell that set it up."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    job = [sys.executable, "-m", "mpishare", "run", "-n", "2", "--", sys.executable, "-c", HEAD + code]
    with nothing_left():
        return run(["unshare", *user, "--mount", "sh", "-ec", f"{setup}\nexec {shlex.join(job)}"], environ)


SHM = "mount -t tmpfs -o size={} none /dev/shm"


@pytest.mark.fault(
    "a /dev/shm of 64 MiB, Docker's default, and an array of 256 MiB",
    "it lies in a nameless file in memory; where MPISHARE_BACKEND asks for a window first, report() says why not",
)
def test_small_shared_memory() -> None:
    code = "a = ms.share(np.full(256 << 20, 7, 'u1') if rank == 0 else None); assert (a == 7).all(); print(ms.report())"
    for backend, refusals in (("", 0), ("window,memmap", 2)):
        ended = run_with(SHM.format("64m"), code, MPISHARE_BACKEND=backend)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("memmap in memory") == 2
        assert ended.stdout.count("not window: 268,435,456 bytes do not fit in /dev/shm") == refusals


@pytest.mark.fault(
    "/dev/shm filling up while arrays are being made", "arrays that fit no longer go to memory; all keep their bits"
)
def test_shared_memory_that_fills_up() -> None:
    code = """
kept = []
for number in range(60):
    if rank == 0 and number % 3 == 0:
        free = os.statvfs("/dev/shm").f_bavail * 4096
        open(f"/dev/shm/foreign{number}", "wb").write(bytes(min(5 << 20, free)))
    kept.append(ms.share(np.full(2 << 20, number, "u1") if rank == 0 else None))
assert all((array == number).all() for number, array in enumerate(kept))
print(sorted({one.backend for one in ms.report().segments}))
"""
    ended = run_with(SHM.format("128m"), code, MPISHARE_BACKEND="window,memmap")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("['memmap in memory', 'window']") == 2


@pytest.mark.fault(
    "no room but that of segments kept for arrays to come (MPISHARE_RECYCLE)", "they are given back, and the array fits"
)
def test_kept_segments_are_given_back() -> None:
    code = """
for count in (20, 24, 26):
    a = ms.share(np.full(count << 20, count, "u1") if rank == 0 else None)
    assert (a == count).all()
    print(ms.report().segments[0].backend)
    del a
"""
    ended = run_with(SHM.format("64m"), code, MPISHARE_BACKEND="window,memmap", MPISHARE_RECYCLE="1G")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["window"] * 6


@pytest.mark.fault(
    "no segment kind has room", "CapacityError on all ranks: host, directory, bytes wanted, bytes free, the cure"
)
def test_no_room_at_all() -> None:
    code = "try: ms.empty(1 << 50, 'u1')\nexcept ms.CapacityError as error: print(error.wanted, error)"
    ended = run_with(SHM.format("64m"), code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(f"{1 << 50} ") == 2
    for words in (
        "bytes do not fit in",
        "of host",
        "bytes free",
        "window: ",
        "memmap in a folder: ",
        "MPISHARE_DIR",
    ):
        assert words in ended.stdout


FOLDER = "mkdir -p {0}; mount -t tmpfs -o size=8m{1} none {0}"
DENIED = "try: ms.zeros(16 << 20, 'u1')\nexcept ms.{0} as error: print(error)\nassert ms.zeros(9).sum() == 0"


@pytest.mark.fault("MPISHARE_DIR or TMPDIR full", "CapacityError on all ranks, with the folder and its free space")
def test_full_folder(tmp_path: Path) -> None:
    environ = {"MPISHARE_DIR": str(tmp_path / "full"), "MPISHARE_BACKEND": "memmap"}
    ended = run_with(FOLDER.format(tmp_path / "full", ""), DENIED.format("CapacityError"), **environ)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(f"16,777,216 bytes do not fit in {tmp_path / 'full'} of host") == 2


@pytest.mark.fault(
    "MPISHARE_DIR or TMPDIR read-only",
    "BackendError or PeerError on all ranks; without MPISHARE_BACKEND, the next kind",
)
def test_read_only_folder(tmp_path: Path) -> None:
    setup = FOLDER.format(tmp_path / "fixed", ",ro")
    environ = {"MPISHARE_DIR": str(tmp_path / "fixed")}
    code = "try: ms.zeros(3)\nexcept (ms.BackendError, ms.PeerError) as error: print(error)"
    ended = run_with(setup, code, **environ, MPISHARE_BACKEND="memmap")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Read-only file system") == 2
    ended = run_with(setup, "assert ms.zeros(3).sum() == 0", **environ)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.fault("MPISHARE_DIR on a network file system", "BackendError: which folder, on what; never used")
def test_network_folder() -> None:
    code = "try: ms.zeros(3)\nexcept (ms.BackendError, ms.PeerError) as error: print(error)"
    ended = run_with("true", code, MPISHARE_DIR="/proc", MPISHARE_BACKEND="memmap")  # any that is not known as local
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("/proc is on proc, which other hosts may share") == 2


@pytest.mark.fault("a limit of 64 open files", "nothing: live arrays hold none")
@pytest.mark.parametrize("backend", ["window", "memmap"])
def test_few_open_files(backend: str) -> None:
    code = (
        "kept = [ms.share(np.full(1000, n) if rank == 0 else None) for n in range(500)]\n"
        "assert all((array == n).all() for n, array in enumerate(kept))"
    )
    ended = run_with("ulimit -n 64", code, MPISHARE_BACKEND=backend)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.fault("no open file left", "the next kind, in the end one copy per rank, where one is enough to read")
def test_no_open_files() -> None:
    code = """
import os, resource
ms.share(np.arange(3))
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1,) * 2)
held = []
try:
    while True: held.append(os.dup(0))
except OSError: pass
shared = ms.share(np.arange(1000))
assert shared.tolist() == list(range(1000))
backend = [one.backend for one in ms.report().segments]
os.close(held.pop())
print(backend)
"""
    ended = run_with("true", code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("['private']") == 2
