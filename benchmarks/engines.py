"""An array from a notebook to the MPI engines of ipyparallel: by our push, and by ipyparallel's own means.

    python -m benchmarks.engines [--counts 2,16,64] [--mib 2,64] [--hosts "2 of 4 1gbit 2 64,1 of 64 100mbit 2"]

A call ends when the client knows that all engines have the array under its name. The recipes know the hosts of the
engines before. A call has another array than the one before it, which it replaces on the engines. Memory is what
the engines hold together for the array when each has read it, over one copy, for sizes that malloc gives back.

Hosts are namespaces of this machine (tests/cluster): their number, the engines of each, the rate of each link, and
the sizes. Where there are two, the client and ipyparallel's controller are on the first; else they are on another one.
"""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness

OURS, PUSHED = "mpishare push", "view.push"
HELD = "held by all engines, arrays"
MALLOC_KEEPS_BYTES = 32 << 20
"""What the C library may keep of memory that is freed (mallopt(3), M_MMAP_THRESHOLD)."""
FILE = "/dev/shm/benchmarks.engines.npy"
Array = NDArray[np.float64]
Firsts = dict[str, int]
"""An engine of each host."""
Send = Callable[[Any, Firsts, Array], object]
"""Sends an array from a client to all of its engines."""


def main() -> None:
    """Measures with each number of engines, and on hosts, prints and keeps."""
    hosts = "2 of 4 1gbit 2 64,1 of 64 100mbit 2"
    options = harness.options(__doc__, 5, counts="2,16,64", mib="2,64", hosts=hosts, address="", hostfile="")
    if options.inside:
        print(json.dumps(inside(options)))
        return
    rounds = ["--rounds", str(options.rounds)]
    figures: dict[str, dict[str, harness.Table]] = {}
    for count in filter(None, options.counts.split(",")):
        command = [
            sys.executable,
            *program(),
            "--counts",
            count,
            "--address",
            "127.0.0.1",
            "--mib",
            options.mib,
            *rounds,
        ]
        figures[f"{count} engines"] = shown(f"{count} engines", harness.told(command))
    for text in filter(None, options.hosts.split(",")):
        number, _, count, rate, *mib = text.split()
        place = f"{number} host{'s' * (number != '1')} of {count}, {rate}"
        figures[place] = shown(place, on_hosts(int(number), count, rate, ["--mib", ",".join(mib), *rounds]))
    harness.keep("engines", figures)


def shown(place: str, sizes: dict[str, harness.Table]) -> dict[str, harness.Table]:
    """The same tables, which it prints."""
    for size, table in sizes.items():
        harness.show(f"{size} to {place}", table)
    return sizes


def program() -> list[str]:
    """What Python runs as the client of engines that it starts. Its functions go to engines, so no part is __main__."""
    return ["-c", "from benchmarks.engines import main; main()", "--inside"]


def on_hosts(number: int, count: str, rate: str, args: list[str]) -> Any:
    """The figures of engines on hosts, `count` on each."""
    from tests.cluster.cluster import cluster
    from tests.cluster.spec import HEAD, HOSTFILE, address_of, make_spec

    with cluster(make_spec(number, ranks=count, rate=rate)) as hosts:
        own = HEAD if number == 1 else hosts.spec.hosts[0]
        place = ["--counts", str(number * int(count)), "--address", address_of(own), "--hostfile", HOSTFILE]
        ended = hosts.exec(own, [sys.executable, *program(), *place, *args])
        return json.loads(ended.stdout.splitlines()[-1])


def inside(options: Any) -> dict[str, harness.Table]:
    """The rows of each way, for all sizes."""
    with started(options.counts, options.address, options.hostfile) as client:
        sizes = map(int, options.mib.split(","))
        return {f"{mib} MiB": measure(client, mib << 20, options.rounds) for mib in sizes}


@contextmanager
def started(count: str, address: str, hostfile: str) -> Iterator[Any]:
    """A client of that many engines, which are there with their controller for the time of a block."""
    from ipyparallel import Client

    with (
        TemporaryDirectory(dir="/var/tmp") as folder,
        Path(folder, "output").open("w") as log,
    ):  # where all hosts see it
        python = [sys.executable, "-m"]
        profile, at = f"--profile-dir={folder}", [f"--ip={address}", f"--location={address}"]
        controller = [*python, "ipyparallel.controller", profile, *at]
        engines = ["-n", count, *python, "ipyparallel.engine", "--mpi", "--IPEngine.enable_nanny=False", profile]
        file = Path(folder, "security", "ipcontroller-client.json")
        with subprocess.Popen(controller, stdout=log, stderr=log):
            while not file.exists():
                time.sleep(0.1)
            with subprocess.Popen([*launcher(hostfile), *engines], stdout=log, stderr=log), Client(str(file)) as client:
                client.wait_for_engines(int(count), timeout=600)
                yield client
                client.shutdown(hub=True)


def launcher(hostfile: str) -> list[str]:
    """What starts a program on ranks of this machine, or on the hosts of the cluster."""
    if not hostfile:
        return [sys.executable, "-m", "mpishare", "run"]
    from tests.cluster.spec import VENV

    return [f"{VENV}/bin/mpiexec", "--hostfile", hostfile]


def measure(client: Any, nbytes: int, rounds: int) -> harness.Table:
    """The row of each way, for one size."""
    engines, firsts = client[:], dict[str, int]()
    for engine, host in engines.apply_async(socket.gethostname).get_dict().items():
        firsts.setdefault(host, engine)
    ways = {name: way for name, way in WAYS.items() if socket.gethostname() in firsts or way is not mapped_by_client}
    sends = {name: partial(way, client, firsts) for name, way in ways.items()}
    arrays = [np.arange(nbytes // 8, dtype=float) + number for number in range(2)]
    copies = held(engines, sends, arrays[0]) if nbytes > MALLOC_KEEPS_BYTES else {}
    times = {name: list[float]() for name in sends}
    for number in range(rounds + 1):
        for name in harness.order(sends, number):
            start = time.perf_counter()
            sends[name](arrays[number % 2])
            times[name].append(time.perf_counter() - start)
            if number == 1 and {*engines.apply_sync(total)} != {arrays[1].sum()}:
                raise SystemExit(f"{name}: another array arrived")
    engines.apply_sync(Path.unlink, Path(FILE), missing_ok=True)
    table = harness.compared(harness.rows({name: taken[1:] for name, taken in times.items()}), OURS)
    return {name: {**row, **({HELD: copies[name]} if copies else {})} for name, row in table.items()}


def held(engines: Any, sends: Mapping[str, Callable[[Array], object]], array: Array) -> dict[str, float]:
    """The memory of each way over one copy. Ours comes last, because it keeps memory to use it again."""
    for send in sends.values():
        send(array[:1])  # what a way imports counts for none
    before, copies = sum(engines.apply_sync(held_without_array)), {}
    for name in sorted(sends, key=OURS.__eq__):
        engines.apply_sync(held_without_array)
        sends[name](array)
        engines.apply_sync(total)
        copies[name] = round((sum(engines.apply_sync(harness.pss, "self")) - before) / array.nbytes, 3)
    return copies


def held_without_array() -> int:
    """What an engine holds when it has no array."""
    bind(None)
    gc.collect()
    return harness.pss("self")


def total() -> float:
    """Reads all of an engine's array."""
    return float(namespace()["data"].sum())


def namespace() -> dict[str, Any]:
    """That of an engine."""
    from IPython import get_ipython

    return get_ipython().user_ns  # type: ignore[no-any-return]


def bind(array: Array | None) -> None:
    """Gives an array of an engine its name."""
    namespace()["data"] = array


def ours(client: Any, firsts: Firsts, array: Array) -> None:
    """By push of mpishare.compat.ipyparallel."""
    from mpishare.compat.ipyparallel import push

    push(client, {"data": array})


def pushed(client: Any, firsts: Firsts, array: Array) -> None:
    """To each engine."""
    client[:].push({"data": array}, block=True)


def broadcast(client: Any, firsts: Firsts, array: Array) -> None:
    """To one engine, which broadcasts it: ipyparallel's notebook "MPI Broadcast", with Bcast in place of bcast."""
    client[0].push({"data": array}, block=True)
    client[:].apply_sync(bind_broadcast)


def bind_broadcast() -> None:
    """On all engines. Rank 0 has the array."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    shape = comm.bcast(namespace()["data"].shape if comm.rank == 0 else None)
    array = namespace()["data"] if comm.rank == 0 else np.empty(shape)
    comm.Bcast(array)
    bind(array)


def mapped(client: Any, firsts: Firsts, array: Array) -> None:
    """To one engine of each host, for a file that all map: ipyparallel's notebook "memmap Broadcast"."""
    client[[*firsts.values()]].apply_sync(write, array)
    client[:].apply_sync(bind_map)


def mapped_by_client(client: Any, firsts: Firsts, array: Array) -> None:
    """The same, where the client writes the file of its own host."""
    others = [engine for host, engine in firsts.items() if host != socket.gethostname()]
    sent = client[others].apply_async(write, array) if others else None
    write(array)
    if sent is not None:
        sent.get()
    client[:].apply_sync(bind_map)


def write(array: Array) -> None:
    """Writes a file that takes the place of the one before, which engines may still map."""
    np.save(FILE + ".new.npy", array)
    Path(FILE + ".new.npy").replace(FILE)


def bind_map() -> None:
    """On an engine."""
    bind(np.load(FILE, mmap_mode="r"))


WAYS: dict[str, Send] = {
    OURS: ours,
    PUSHED: pushed,
    "push to one, comm.Bcast": broadcast,
    "memory maps, one push per host": mapped,
    "memory maps, the client writes": mapped_by_client,
}


if __name__ == "__main__":
    main()
