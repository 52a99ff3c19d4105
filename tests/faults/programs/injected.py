"""Rank argv[1] runs under strace, which has each of the system calls argv[2] fail with each of the errors argv[3].

Of each call first the first fails, then the second, until there is none. Each time the ranks share and make an array.
Every rank must get the right bits, or every rank an error of ours; and the next call must work. Prints on rank 0, as
JSON, how often each call failed with each error. The first that fails is number argv[4]; with argv[3] SIGKILL the rank
dies there. With argv[5], a folder, the ranks save there instead, and what was there must be there still.
"""

import json
import os
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

import h5py
import numpy as np
from mpi4py import MPI

import mpishare as ms

comm = MPI.COMM_WORLD
victim, calls, faults = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")


def attached(call, fault, number, log):
    """Strace on this process, once it is there."""
    inject = f"signal={fault}" if fault == "SIGKILL" else f"error={fault}"
    command = ["strace", "-f", "-p", str(os.getpid()), "-o", str(log), "-e", f"trace={call}"]
    tracer = subprocess.Popen([*command, "-e", f"inject={call}:{inject}:when={number}"], stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    line = tracer.stderr.readline()
    assert b" attached" in line, line
    return tracer


def attempt_to_share(number, own):
    """What came of one share and one array: "bits", or the class of the error."""
    try:
        table = ms.share(np.full(300_000, number) if comm.rank == 0 else None, comm=own)
        grid = ms.full(1000, number, comm=own)
    except ms.MpishareError as error:
        return type(error).__name__
    return "bits" if (table == number).all() and (grid == number).all() else "wrong"


def attempt_to_save(number, own):
    """What came of one save of each kind; "bits" where all are as they were saved now, or else before."""
    rows, folder = np.full((50_000, 2), number), Path(sys.argv[5])
    checkpoint = ms.Checkpoint(folder / "run", keep=1, comm=own)
    outcomes = []
    for save in (
        lambda: ms.save(folder / "a.npy", rows, distributed=True, comm=own),
        lambda: ms.save(folder / "a.h5", rows, "rows", distributed=True, comm=own),
        lambda: checkpoint.save(number, {"rows": rows}, distributed=["rows"]),
    ):
        try:
            save()
            outcomes.append("bits")
        except ms.MpishareError as error:
            outcomes.append(type(error).__name__)
    snapshot = checkpoint.latest()
    with h5py.File(folder / "a.h5") as file:
        whole = [np.load(folder / "a.npy"), file["rows"][:], None if snapshot is None else snapshot.load("rows")]
    comm.Barrier()
    for outcome, array in zip(outcomes, whole, strict=True):
        if array is None or len(array) != 50_000 * comm.size or not (array == array[0, 0]).all():
            return "wrong"
        if outcome == "bits" and array[0, 0] != number:
            return "wrong"
    assert not list(folder.rglob("*.tmp.*"))
    return next((outcome for outcome in outcomes if outcome != "bits"), "bits")


def failed(call, fault, number):
    """Whether there was a call of that number, which failed and was survived."""
    own = comm.Dup()  # which keeps no memory from before
    ms.share(np.arange(3), comm=own)  # what is made once is there
    with tempfile.NamedTemporaryFile() as log:
        tracer = attached(call, fault, number, Path(log.name)) if comm.rank == victim else None
        comm.Barrier()
        outcome = attempt(number, own)
        comm.Barrier()
        if tracer is not None:
            tracer.terminate()
            tracer.wait()
        injected = comm.bcast("(INJECTED)" in Path(log.name).read_text(), victim)
    outcomes = set(comm.allgather(outcome))
    assert "wrong" not in outcomes, outcomes
    assert outcomes == {"bits"} or "bits" not in outcomes, outcomes
    assert attempt(number, own) == "bits", "the next call works"
    own.Free()
    return injected


def times_failed(call, fault, first):
    """Has call number `first` fail, then the next, until there is none; how many did."""
    return next(number for number in count(first) if not failed(call, fault, number)) - first


attempt = attempt_to_save if len(sys.argv) > 5 else attempt_to_share
attempt(0, comm)  # so that there is something to lose
if comm.rank == 0:
    print("shared", flush=True)
comm.Barrier()
counts = {f"{call} {fault}": times_failed(call, fault, int(sys.argv[4])) for call in calls for fault in faults}
if comm.rank == 0:
    print(json.dumps(counts))
