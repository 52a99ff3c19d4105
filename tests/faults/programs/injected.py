"""Rank argv[1] runs under strace, which has each of the system calls argv[2] fail with each of the errors argv[3].

Of each call first the first fails, then the second, until there is none. Each time the ranks share and make an array.
Every rank must get the right bits, or every rank an error of ours; and the next call must work. Prints on rank 0, as
JSON, what came of each call that failed with each error. The first that fails is number argv[4]; with argv[3] SIGKILL
or SIGSTOP the rank dies or stops there, with 0 the call returns 0, and with EROFS all later ones fail too. With
argv[5], a folder, the ranks save there instead, and what was there must be there still.
"""

import json
import sys
import tempfile
from contextlib import nullcontext
from itertools import count, takewhile
from pathlib import Path

import h5py
import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.faults.strace import injected

comm = MPI.COMM_WORLD
victim, calls, faults = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")


def attempt_to_share(value, own):
    """What came of one share and one array: "bits", or the class of the error, in a list."""
    try:
        table = ms.share(np.full(300_000, value) if comm.rank == 0 else None, comm=own)
        grid = ms.full(1000, value, comm=own)
    except ms.MpishareError as error:
        return [type(error).__name__]
    return ["bits" if (table == value).all() and (grid == value).all() else "wrong"]


def attempt_to_save(value, own):
    """What came of one save of each kind, as of a share."""
    rows, outcomes = np.full((50_000, 2), value), []
    checkpoint = ms.Checkpoint(folder / "run", keep=1, comm=own)
    for save in (
        lambda: ms.save(folder / "a.npy", rows, distributed=True, comm=own),
        lambda: ms.save(folder / "a.h5", rows, "rows", distributed=True, comm=own),
        lambda: checkpoint.save(value, {"rows": rows}, distributed=["rows"]),
    ):
        try:
            save()
            outcomes.append("bits")
        except ms.MpishareError as error:
            outcomes.append(type(error).__name__)
    return outcomes


def assert_saved(value, outcomes):
    """Each file is as it was saved now, or else before."""
    snapshot = ms.Checkpoint(folder / "run").latest()
    with h5py.File(folder / "a.h5") as file:
        arrays = [np.load(folder / "a.npy"), file["rows"][:], None if snapshot is None else snapshot.load("rows")]
    comm.Barrier()
    for outcome, array in zip(outcomes, arrays, strict=True):
        assert array is not None
        assert array.shape == (50_000 * comm.size, 2)
        assert (array == array[0, 0]).all()
        assert outcome != "bits" or array[0, 0] == value


def failed(call, fault, number):
    """What came of the call of that number, which failed and was survived; False if there was none."""
    value = next(values)
    own = comm.Dup()  # which keeps no memory from before
    ms.share(np.arange(3), comm=own)  # what is made once is there
    with tempfile.NamedTemporaryFile() as log:
        result = "retval=0" if fault == "0" else f"{'signal' if fault.startswith('SIG') else 'error'}={fault}"
        when = f"{number}+" if fault == "EROFS" else str(number)
        with injected(call, f"{result}:when={when}", log.name) if comm.rank == victim else nullcontext():
            comm.Barrier()
            outcomes = attempt(value, own)
            comm.Barrier()
        is_injected = comm.bcast("(INJECTED)" in Path(log.name).read_text(), victim)
    for of_ranks in zip(*comm.allgather(outcomes), strict=True):
        assert "wrong" not in of_ranks, of_ranks
        assert set(of_ranks) == {"bits"} or "bits" not in of_ranks, of_ranks
    if saves:
        assert_saved(value, outcomes)
        assert fault == "EROFS" or not list(folder.rglob("*.tmp.*"))
        comm.Barrier()
    assert set(attempt(value, own)) == {"bits"}, "the next call works"
    own.Free()
    return is_injected and min(outcomes, key="bits".__eq__)


saves = len(sys.argv) > 5
folder = Path(sys.argv[5] if saves else "")
attempt = attempt_to_save if saves else attempt_to_share
values = count()  # a checkpoint follows the one before
attempt(next(values), comm)  # so that there is something to lose
if comm.rank == 0:
    print("shared", flush=True)
comm.Barrier()
failures = {
    f"{call} {fault}": list(takewhile(bool, (failed(call, fault, number) for number in count(int(sys.argv[4])))))
    for call in calls
    for fault in faults
}
if comm.rank == 0:
    print(json.dumps(failures))
