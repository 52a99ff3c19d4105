"""load(call=…) of an array behind HTTP: the server sends each chunk once, to a rank of the root's node."""

import re
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import zarr
from mpi4py import MPI

import mpishare as ms
from tests.arrays import assert_same
from tests.processes import wait_until

COMM = MPI.COMM_WORLD
LISTEN, TIME_WAIT = "0A", "06"  # of a socket, in /proc/net/tcp
ARRAY = np.random.default_rng(3).integers(0, 2**30, (700, 1100), "i4")


class Handler(SimpleHTTPRequestHandler):
    """Sends files, and notes how many bytes of each."""

    server: "Server"

    def copyfile(self, source, outputfile):
        content = source.read()
        self.server.sent[self.path] += 1
        self.server.sent_bytes += len(content)
        outputfile.write(content)

    def log_message(self, *_):
        """Prints nothing."""


class Server(ThreadingHTTPServer):
    """A server of a folder, on this host."""

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=folder))
        self.forget()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()

    def forget(self):
        self.sent: Counter[str] = Counter()
        self.sent_bytes = 0

    def end(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


@pytest.fixture(scope="module")
def served(build_folder):
    """The server, on rank 0; the folder of the array; and its URL on all ranks."""
    folder, server = build_folder / "served", None
    if COMM.rank == 0:
        zarr.open(str(folder / "a"), mode="w", shape=ARRAY.shape, chunks=(64, 500), dtype="i4")[...] = ARRAY
        server = Server(folder)
    url = COMM.bcast(server and f"http://127.0.0.1:{server.server_port}/a")
    if ms.topology().node == ms.topology().node_of(0):
        zarr.open_array(url, mode="r")[0, 0]  # starts threads, before descriptors are counted
    COMM.Barrier()
    wait_until(lambda: is_closed(url), 10)
    yield server, folder, url
    COMM.Barrier()
    if server:
        server.end()


def is_closed(url):
    """Whether both ends of each connection to the server are closed, as they are some time after the last byte."""
    port = f":{urlsplit(url).port:04X}"
    sockets = [line.split()[1:4] for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    states = {state for local, remote, state in sockets if port in (local[-5:], remote[-5:])}
    return states <= {LISTEN, TIME_WAIT}


@pytest.fixture(autouse=True)
def _no_connection_is_left(served):
    """Before descriptors are counted."""
    _, _, url = served
    yield
    COMM.Barrier()
    wait_until(lambda: is_closed(url), 10)


def test_each_byte_is_sent_once(served):
    server, folder, url = served
    if server:
        server.forget()
    COMM.Barrier()
    assert_same(ms.load(call=lambda: zarr.open_array(url, mode="r")), ARRAY)
    COMM.Barrier()
    if server:
        files = [file for file in folder.rglob("*") if file.is_file()]
        chunks = [file for file in files if not file.name.startswith((".z", "zarr."))]
        assert {f"/{file.relative_to(folder)}" for file in chunks} <= server.sent.keys()
        assert {server.sent[f"/{file.relative_to(folder)}"] for file in chunks} == {1}
        assert server.sent_bytes < 1.02 * sum(file.stat().st_size for file in files)


@pytest.mark.once
def test_a_chunk_that_is_not_sent(served, raised, monkeypatch):
    """The server answers that it has an error: all ranks raise one that names the tile."""
    server, _, url = served
    if server:
        send = Handler.send_head

        def refuse(self):
            return self.send_error(500) if re.search(r"3.1$", self.path) else send(self)

        monkeypatch.setattr(Handler, "send_head", refuse)
    COMM.Barrier()
    errors = raised(lambda: ms.load(call=lambda: zarr.open_array(url, mode="r")))
    assert {kind for kind, _ in errors} <= {"FileError", "PeerFileError"}
    assert all(re.search(r"tile \[\d+:256, 0:1100\] cannot be read: .* 500", text) for _, text in errors), errors
    for row in range(2):  # and lets the threads of zarr forget the error, and so what was loaded
        assert_same(ms.load(call=lambda: zarr.open_array(url, mode="r"), region=row), ARRAY[row])
