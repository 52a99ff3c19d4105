"""mpishare bench on the ranks of a job."""

import json

import pytest

import mpishare as ms
from mpishare.cli import bench

pytestmark = pytest.mark.two_launches


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


def test_the_verdict_turns_ratios_round():
    times = {"ms.share": 2.0, "comm.bcast": 34.0, "comm.Bcast": 0.5}
    assert bench._speed(times) == "17.0 times as fast as comm.bcast and 4.0 times as slow as comm.Bcast"


def test_a_file_of_the_figures(comm, shared_folder):
    bench.main(["--mib", "1", "--output", str(shared_folder / "bench.json")])
    result = json.loads((shared_folder / "bench.json").read_text())
    assert set(result["milliseconds"]) == {"1024", "1048576"}
    with pytest.raises(ms.MpishareError, match="No such file or directory"):
        bench.main(["--output", str(shared_folder / "none" / "bench.json")])


def test_what_is_no_size(comm):
    """Rank 0 says so. The others end without a failure, for which a launcher would end rank 0 before that."""
    with pytest.raises(SystemExit) as ended:
        bench.main(["--mib", "0"])
    assert ended.value.code == (0 if comm.rank else 2)
