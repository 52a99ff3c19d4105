"""Faults within calls, and too little room: runs the function argv[1], with argv[2:], on each rank."""

import gc
import os
import random
import resource
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms
from mpishare.comm import watchdog
from mpishare.comm.alone import alone
from mpishare.comm.context import context_of
from mpishare.memory import window
from mpishare.objects import packing
from mpishare.transfer import node_fill
from tests.faults.strace import injected

comm = MPI.COMM_WORLD
rank = comm.rank
comm.Barrier()  # a rank may import for longer than a call may wait
ms.topology()


@contextmanager
def printed():
    """Prints our error that the block raises, with its class and the number that the system gave."""
    try:
        yield
    except ms.MpishareError as error:
        number = f"{error.errno} " if isinstance(error, ms.FileError) else ""
        print(f"error: {type(error).__name__} {number}{error}", flush=True)


def wait_for_the_others():
    """Waits in no call of mpishare, until all others have called `release`."""
    for other in set(range(comm.size)) - {rank}:
        while not comm.Iprobe(source=other):
            time.sleep(0.001)  # a rank that waits in MPI takes a core from the others
        comm.recv(source=other)


def release(waiting):
    """Ends the wait of that rank."""
    if rank != waiting:
        comm.send(None, waiting)


def raise_between(bad):
    """One rank raises between two collectives."""
    if rank == int(bad):
        raise ValueError("no data")
    ms.share(np.arange(3))
    comm.Barrier()
    ms.fence()


def come_late(late, calls):
    """One rank comes to all its calls when the others have given up."""
    if rank == int(late):
        wait_for_the_others()
    for _ in range(int(calls)):
        with printed():
            ms.zeros(3)
    release(int(late))


def wait_for(file, item):
    """A task: item 0 takes until there is a file."""
    while item == 0 and not file.exists():
        time.sleep(0.001)


def take_long(name, folder, number="1"):
    """In one call the others wait for a rank longer than they may: for fsync number `number`, or a task."""
    table, checkpoint, ended = Path(folder, "a.npy"), ms.Checkpoint(folder), Path(folder, "ended")
    calls = {
        "save": lambda: ms.save(table, np.ones(3)),
        "Checkpoint.save": lambda: checkpoint.save(1, {}),
        "map": lambda: ms.map(partial(wait_for, ended), range(3), chunk=1),
    }
    is_slow = rank == 0 and "save" in name
    with printed(), injected("fsync", f"delay_exit=3000000:when={number}") if is_slow else nullcontext():
        comm.Barrier()
        calls[name]()
        print("done", flush=True)
    ended.touch()
    comm.Barrier()


def be_suspended(name, file):
    """The others wait for a rank that waits for a file, and the job is suspended meanwhile."""
    used = comm.Dup() if name == "a first call" else comm
    if rank == 2:
        wait_for_resume(Path(file), 0)
    ms.fence(comm=used)
    print("done", flush=True)


def wait_for_resume(file, item):
    """Waits until there is a file, and says so once the other ranks wait for this one."""
    time.sleep(0.5)
    print("waiting", flush=True)
    wait_for(file, item)


def receive_after_a_stall():
    """Rank 0 sends chunks of an array when the others have given up and dropped it."""
    other, own_comm = comm.Dup(), context_of().collective_comm
    isend = own_comm.isend

    def send_late(*args):
        own_comm.isend = isend  # type: ignore[method-assign]
        wait_for_the_others()
        return isend(*args)

    if rank == 0:
        own_comm.isend = send_late  # type: ignore[method-assign]
    with printed():
        ms.share(np.ones(1 << 21) if rank == 0 else None)
    gc.collect()
    blocks = [np.full(8 << 20, 7, "u1") for _ in range(4)]
    release(0)
    comm.Barrier()  # rank 0 has sent
    end = time.monotonic() + 1
    while time.monotonic() < end:
        other.Iprobe()
        time.sleep(0.001)
    assert all((block == 7).all() for block in blocks)
    print("right", flush=True)
    other.Barrier()
    os._exit(0)


def interrupted_in(begin, *args):
    """A step between ranks, after the handler of a signal."""
    signal.raise_signal(signal.SIGALRM)
    return begin(*args)


def put_into(grid, table, comm):
    """The array into which the table was put."""
    ms.put(grid, ..., table, comm=comm)
    return grid


def interrupt_where_it_sends(own):
    """From now on the handler of a signal raises where a call on this rank begins what follows its agreement."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    context = context_of(own)
    for own_comm in filter(None, (context.collective_comm, context.leader_comm)):
        for begin in ("isend", "irecv", "bcast"):
            setattr(own_comm, begin, partial(interrupted_in, getattr(own_comm, begin)))


def interrupt(folder):
    """Some ranks in turn are interrupted in the middle of each call."""
    file, table, grid = Path(folder, "a.npy"), np.full((1 << 20, 1), 5, "u1"), np.empty(0)
    calls = {
        "bcast": lambda comm: ms.bcast(grid, comm=comm),
        "put": lambda comm: put_into(grid, table, comm),
        "share": lambda comm: ms.share(table, comm=comm),
        "save": lambda comm: ms.save(file, table, distributed=True, comm=comm) and np.load(file),
        "load": lambda comm: ms.load(file, comm=comm),
    }
    ms.save(file, table)
    for name, victim in product(calls, (0, 2, 3)):
        own = comm.Dup()
        grid = ms.full(table.shape, 5, "u1", comm=own)
        if rank == victim:
            interrupt_where_it_sends(own)
        outcomes = comm.allgather(attempts(calls[name], own))
        assert not any("wrong" in of_rank for of_rank in outcomes), (name, victim, outcomes)
        if outcomes[victim] != ["right", "right"]:  # as of a rank that sends and receives nothing
            assert outcomes[victim][0] == "KeyboardInterrupt", (name, victim, outcomes)
            assert outcomes[victim][1] in ("out of step", "StallError"), (name, victim, outcomes)
            print(name)


class FromOutside(Exception):
    """What the handler of a signal raises."""


def interrupt_before(place):
    """Rank 1 gets an exception from outside before it makes a window, or at the end of a task; the others wait."""
    owner, name = {"window": (window, "_make_shared"), "task": (alone, "end")}[place]
    usual, kept = getattr(owner, name), []

    def interrupted(*args):
        setattr(owner, name, usual)
        raise FromOutside

    for number in range(2):
        own = comm.Dup()
        ms.share(np.zeros(3), comm=own)
        if rank == 1:
            setattr(owner, name, interrupted)
        try:
            ms.map(abs, range(9), comm=own) if place == "task" else ms.zeros(1 << 20, comm=own)
        except (FromOutside, ms.StallError, ms.PeerError) as error:
            kept.append(error)  # with its traceback, which refers to all frames
        assert len(kept) == number + 1
    print(*(type(error).__name__ for error in kept), flush=True)


def share_and_gather(own):
    """Calls that move arrays."""
    for step in range(200):
        ms.share(np.full(100 if step % 2 else 40_000 + step, step), comm=own)
        ms.allgather(np.full(rank + 5, step), comm=own)


def map_tasks(own):
    """Maps whose tasks are few or many."""
    for step in range(50):
        ms.map(abs, range(8 if step % 2 else 2000), chunk=None if step % 3 else 1, comm=own)


def interrupt_anywhere(calls):
    """Each rank in turn gets an exception from outside at any instruction of its calls, or of maps two of them."""

    def handler(*_):
        if signals:
            signals.pop()
            raise FromOutside
        signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, handler)
    delays, plain, outcomes, signals = random.Random(rank), comm.Dup(), [], list[int]()
    for number in range(12 if calls == "share_and_gather" else 9):  # a stalled map takes 3 s
        own, is_victim = comm.Dup(), rank == number % comm.size
        ms.share(np.zeros(3), comm=own)
        plain.Barrier()
        try:
            try:
                if is_victim:
                    signals[:] = [0] * (1 + number % 2 * (calls == "map_tasks"))
                    signal.setitimer(signal.ITIMER_REAL, delays.uniform(0.0005, 0.01), 0.0002)
                globals()[calls](own)
            finally:
                time.sleep(0.001)  # in which the second signal comes
                signal.setitimer(signal.ITIMER_REAL, 0)
            outcome = "nothing"
        except (FromOutside, ms.MpishareError) as error:
            cause = error.__cause__ if isinstance(error, ms.SpecError) else None  # it came while an object was pickled
            outcome = type(cause or error).__name__
        outcomes.append((is_victim, outcome))
        plain.Barrier()
    seen = {*chain(*plain.allgather(outcomes))}
    others = {"PeerError", "StallError", "TaskError[FromOutside]", "nothing"}
    assert {outcome for is_victim, outcome in seen if is_victim} <= {"FromOutside", *others - {"PeerError"}}, seen
    assert {outcome for is_victim, outcome in seen if not is_victim} <= others, seen
    assert (True, "FromOutside") in seen


def end_by_an_interrupt():
    """The root is interrupted in the middle of a call while the others wait for its messages."""
    grid = ms.zeros(1 << 20, "u1")
    if rank == 0:
        interrupt_where_it_sends(comm)
    ms.put(grid, ..., 5)


def attempts(call, own):
    """What came of a call, and of a second one."""
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append("right" if (call(own) == 5).all() else "wrong")
        except (ms.MpishareError, KeyboardInterrupt) as error:
            outcomes.append("out of step" if "out of step" in str(error) else type(error).__name__)
    return outcomes


def wait_long():
    """Rank 1 comes late to some calls in turn, one of them the first on its communicator; the others say so."""
    watchdog.REPORT_AFTER_S, watchdog.REPORT_LOOK_S = 1, 0.25  # type: ignore[assignment]
    time.sleep(2.5)  # longer than the last look by the usual settings
    own, is_late = comm.Dup(), rank == 1
    calls = {
        "share": lambda: ms.share(1),
        "recv": lambda: [ms.isend(1, other).wait() for other in (0, 2)] if is_late else ms.recv(1),
        "topology": lambda: ms.topology(own),
        "fence": lambda: ms.fence(scope="all"),
    }
    for call in calls.values():
        comm.Barrier()
        if is_late:
            time.sleep(1.8)
        call()


def fail_to_copy():
    """The root has no memory to copy columns, which are not contiguous, alone or beside a large array; then it has."""

    def fail(*_):
        raise MemoryError

    root, usual = comm.size - 1, node_fill.fill
    small, large = (np.arange(count).reshape(-1, 2)[:, 1] for count in (2000, 1 << 20))
    objects: list[Any] = [small, large, [small, np.ones(1 << 20)]]
    for obj in objects:
        ms.share(obj if rank == root else None, root=root)  # after which slots are known
        for fill in (fail, usual):
            node_fill.fill = packing.fill = fill  # type: ignore[attr-defined]
            with suppress(MemoryError, ms.PeerError):
                result = ms.share(obj if rank == root else None, root=root)
                print(all(map(np.array_equal, result, obj)) if obj is objects[2] else np.array_equal(result, obj))


def run_threads():
    """Threads share, each on its own communicators."""
    comms = [comm.Dup() for _ in range(30)]
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def work(root):
        kept = []
        for number in range(30):
            own = comms[root + 3 * (number % 10)]
            array = ms.share(np.full(20_000, number) if rank == root else None, root=root, comm=own)
            kept = [*kept[-5:], array]
            assert (array == number).all()
            ms.fence(comm=own)
            ms.report()

    with ThreadPoolExecutor() as pool:
        list(pool.map(work, range(3)))


def protect_no_pages():
    """The pages of one rank's node cannot be made read-only after a call that allocates for each node alone."""
    ms.allreduce(np.ones(3))  # what is made once is there
    with injected("mprotect", "error=ENOMEM:when=1+") if rank == 0 else nullcontext():
        comm.Barrier()
        with printed():
            ms.allreduce(np.ones(3))
        comm.Barrier()
    assert ms.allreduce(np.ones(3)).tolist() == [comm.size] * 3
    print("right", flush=True)


def share_bytes(nbytes):
    """Shares one array, and prints the report."""
    array = ms.share(np.full(int(nbytes), 7, "u1") if rank == 0 else None)
    assert (array == 7).all()
    print(ms.report())


def share_while_it_fills_up():
    """Shares 60 arrays of 2 MiB, while somebody else fills /dev/shm."""
    kept = []
    for number in range(60):
        if rank == 0 and number % 3 == 0:
            free = os.statvfs("/dev/shm").f_bavail * 4096
            Path(f"/dev/shm/foreign{number}").write_bytes(bytes(min(5 << 20, free)))
        kept.append(ms.share(np.full(2 << 20, number, "u1") if rank == 0 else None))
    assert all((array == number).all() for number, array in enumerate(kept))
    print(sorted({segment.backend for segment in ms.report().segments}))


def fill_before_use():
    """Makes an array, fills /dev/shm, uses the array, and makes another one."""
    grid = ms.empty(20 << 20, "u1")
    if rank == 0:
        Path("/dev/shm/foreign").write_bytes(bytes(os.statvfs("/dev/shm").f_bavail * 4096))
    comm.Barrier()
    grid[ms.partition(grid.size, scope="node")] = 7
    ms.fence()
    print("right" if (grid == 7).all() else "wrong")
    with printed():
        ms.empty(20 << 20, "u1")


def make(nbytes):
    """Makes an array, and prints the error."""
    with printed():
        ms.zeros(int(nbytes), "u1")
    assert ms.zeros(9).sum() == 0


def make_in_step(folder, nbytes):
    """Makes an array while another job does the same; both end when both have tried."""
    kept = []
    for moment in ("start", "end"):
        if rank == 0:
            Path(folder, f"{moment}-{os.getpid()}").touch()
            limit = time.monotonic() + 30
            while len(list(Path(folder).glob(f"{moment}-*"))) < 2 and time.monotonic() < limit:
                time.sleep(0.001)
        comm.Barrier()
        if moment == "start":
            with printed():
                kept.append(ms.zeros(int(nbytes), "u1"))


def save_over(folder):
    """Saves over files that are there, and makes a checkpoint beside them."""
    for name, dataset in (("a.npy", None), ("a.h5", "x"), ("new.npy", None)):
        with printed():
            ms.save(f"{folder}/{name}", np.ones(3), dataset)
    with printed():
        ms.Checkpoint(folder)


def share_without_descriptors():
    """Shares when no file can be opened any more."""
    ms.share(np.arange(3))
    ms.report()  # imported at its first use
    limit = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held = []
    with suppress(OSError):
        while True:
            held.append(os.dup(0))
    shared = ms.share(np.arange(1000))
    assert shared.tolist() == list(range(1000))
    backend = [segment.backend for segment in ms.report().segments]
    os.close(held.pop())
    print(backend)


def save_on_a_full_disk(folder):
    """Replaces files on a disk of 8 MiB."""
    for file, dataset in ((Path(folder, "a.npy"), None), (Path(folder, "a.h5"), "x")):
        ms.save(file, np.ones(1 << 16), dataset, distributed=True)
        before = file.read_bytes()
        with printed():
            ms.save(file, np.ones(7 << 16), dataset, distributed=True)
        assert file.read_bytes() == before
        comm.Barrier()
        assert len(list(Path(folder).iterdir())) == 1
        comm.Barrier()
        if rank == 0:
            file.unlink()


def save_as_nobody(folder):
    """Saves as a user without permission: into a folder, and over a file of another user."""
    names = (("mine/a.npy", None), ("mine/a.h5", "x"), ("open/a.npy", None), ("open/a.h5", "x"))
    for name, dataset in names[:2]:
        ms.save(f"{folder}/{Path(name).name}", np.ones(3), dataset)  # imports what that user may not be able to read
    comm.Barrier()
    os.setegid(65534)
    os.seteuid(65534)
    for name, dataset in names:
        with printed():
            ms.save(f"{folder}/{name}", np.ones(3), dataset)


globals()[sys.argv[1]](*sys.argv[2:])
