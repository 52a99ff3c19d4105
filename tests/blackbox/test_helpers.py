"""Processes that ranks start and that are not ranks read shared arrays by handles, and leave nothing when killed."""

import pytest

from tests.blackbox.launch import PROGRAMS, run_ranks
from tests.processes import living_in_session, wait_until

KILLED = [("rank", "waits"), ("rank", "reads"), ("child", "starts"), ("child", "reads"), ("both", "starts")]


@pytest.mark.parametrize(("victims", "moment"), KILLED)
def test_a_rank_or_its_child_is_killed(victims, moment, tmp_path):
    """SIGKILL of a rank, of a process to which it gave a handle, or of both.

    Outcome: nothing is left; a process that lives on reads the same arrays.
    """
    (temporary := tmp_path / "temporary").mkdir()
    args = [victims, moment, str(tmp_path)]
    status = 0 if victims == "child" else "failure"
    ended = run_ranks(2, ["-m", f"{PROGRAMS}.killed", *args], {"TMPDIR": str(temporary)}, status=status)
    child, answer = int((tmp_path / "child").read_text()), tmp_path / "answer"
    wait_until(lambda: not living_in_session(child), 60)
    assert list(temporary.iterdir()) == []
    if victims == "child":
        assert ended.stdout == f"{2.0 * (3 << 17)}\n" * 2
    elif victims == "rank":
        assert answer.read_text() == str(2.0 * (3 << 17))
