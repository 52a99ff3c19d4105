"""mpishare bench on the ranks of a job."""

import itertools
import json

import pytest

import mpishare as ms
from mpishare.cli import bench

pytestmark = pytest.mark.two_launches


def test_a_table_and_a_verdict(comm, capsys):
    assert bench.main(["--mib", "1"]) == 0
    output = capsys.readouterr().out
    assert (output.count("mpishare.share"), output.count("verdict: ")) == ((2, 1) if comm.rank == 0 else (0, 0))
    if comm.rank == 0:
        shares = [line.split()[-3:] for line in output.splitlines() if line.lstrip().startswith("mpishare.share")]
        assert all(sorted(map(as_us, quartiles)) == [*map(as_us, quartiles)] for quartiles in shares)


def as_us(text):
    return float(text.replace(",", ""))


def test_no_way_keeps_its_predecessor(comm, monkeypatch):
    called = []

    def time(way, sources, nbytes):
        called.append((way, nbytes))
        return 0.0

    monkeypatch.setattr(bench, "_time", time)
    cases = len(bench._measure([8, 16]))
    rounds = [called[first : first + cases] for first in range(0, len(called), cases)]
    pairs = {pair for turn in rounds for pair in itertools.pairwise(turn)}
    assert all(len({first for first, second in pairs if second == case}) > 2 for case in rounds[0])


def test_the_file_has_all_rounds_and_what_they_were_measured_with(comm, shared_folder, capsys):
    file = shared_folder / "bench.json"
    assert bench.main(["--mib", "2", "--output", str(file)]) == 0
    if comm.rank == 0:
        result = json.loads(file.read_text())
        assert {row["bytes"] for row in result["figures"]} == {1 << 10, 1 << 20, 2 << 20}
        assert {len(row["seconds"]) for row in result["figures"]} == {bench._ROUNDS}
        ways = {row["way"] for row in result["figures"]}
        assert ("Send to the last node, Recv" in ways) == (ms.topology().n_nodes > 1)
        assert {"versions", "nodes"} <= set(result["ground"])
        assert set(result["facts"]) == {"date", "version"}


def test_a_file_that_cannot_be_written_is_an_error_on_all_ranks_before_anything_is_measured(comm):
    with pytest.raises(ms.FileError, match="No such file or directory"):
        bench.main(["--output", "/no/such/folder/bench.json"])


def test_what_is_no_size(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--mib", "0"])
    assert "--mib takes 1 or more" in capsys.readouterr().err
