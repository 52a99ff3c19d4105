"""The jobs that compute, over several hosts: the same answer as on one rank."""

from __future__ import annotations

import sys

from tests.cluster.conftest import Make


def test_over_hosts_unevenly_filled(make: Make) -> None:
    one = make(3, ranks="1,3,1", name="science")
    code = (
        "from jobs import histogram, kmeans\n"
        "assert kmeans.main(['--points', '20000']) == 0\n"
        "assert histogram.main(['--values', '200000', '--bins', '1000']) == 0\n"
    )
    ended = one.mpiexec(["--map-by", "slot", "--rank-by", "node", sys.executable, "-c", code])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" 5 ranks, ") == ended.stdout.count("the same\n") == 2
    for host in one.spec.hosts:
        assert one.shared_files(host) == []
