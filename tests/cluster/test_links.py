"""The links of a cluster are as they were asked for."""

import subprocess
import sys

DELAY_MS = 40
ANSWER = "import socket; c = socket.create_server(('', 7777)).accept()[0]; c.sendall(c.recv(1))"
ASK = """
import socket, time
connection = None
while connection is None:
    try:
        connection = socket.create_connection(("h2", 7777))
    except ConnectionRefusedError:
        pass
start = time.perf_counter()
connection.sendall(b"!")
assert connection.recv(1) == b"!"
print(time.perf_counter() - start)
"""


def test_packets_take_the_delay_on_each_way(make):
    hosts = make(2, ranks="1", delay=f"{DELAY_MS}ms")
    line, environ = hosts.line("h2", [sys.executable, "-c", ANSWER]), hosts.environment()
    with subprocess.Popen(line, env=environ) as answering:
        round_trip = float(hosts.exec("h1", [sys.executable, "-c", ASK]).stdout)
        assert answering.wait(10) == 0
    assert round_trip * 1e3 >= 2 * DELAY_MS
