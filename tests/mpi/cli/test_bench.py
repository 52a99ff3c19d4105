"""mpishare bench on the ranks of a job."""

import pytest

import mpishare as ms
from mpishare.cli import bench

pytestmark = pytest.mark.once


def test_one_rank_prints_a_table_and_a_verdict(comm, capsys):
    assert bench.main(["--mib", "2"]) == 0
    output = capsys.readouterr().out
    if comm.rank:
        assert output == ""
        return
    rows = [line.split() for line in output.splitlines()[2:5]]
    assert [row[:2] for row in rows] == [["1", "KiB"], ["1", "MiB"], ["2", "MiB"]]
    assert all(float(time) >= 0 for row in rows for time in row[2:])
    saved = 2 * (comm.size - ms.topology().n_nodes)
    words = f"Sharing 2 MiB saves {saved} MiB of memory; it is" if saved else "saves no memory"
    assert (words if comm.size > 1 else "There is one rank") in output.splitlines()[-1]
