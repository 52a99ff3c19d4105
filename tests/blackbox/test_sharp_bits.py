"""SHARP_BITS.md: what it says to avoid does what it says, and what it says to do instead works."""

import re

import pytest

from tests.blackbox.launch import ROOT, run_code
from tests.blackbox.test_manual import outcomes_of

PAGE = (ROOT / "SHARP_BITS.md").read_text()
FIRST, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
"""It stands before all others."""
COMMENTED = r"^<!-- (?:don't|instead|fine)(.*?)(?:: (\w+) (.*?))? -->\n```python\n(.*?)```"
BLOCKS = re.findall(COMMENTED, PAGE, re.DOTALL | re.MULTILINE)
"""Of each: the settings, what it does, the text of that, the code."""
IN_STEP = [block for block in BLOCKS if "alone" not in block[0]]
ALONE = [block for block in BLOCKS if "alone" in block[0]]
RANKS, NODES = 3, "block:2"
PLAIN = {"OPENBLAS_NUM_THREADS": "", "OMP_NUM_THREADS": "", "MKL_NUM_THREADS": ""}
"""As many threads as the libraries like, as for a user who has set nothing."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcomes of those that leave the ranks in step, in one job."""
    programs = [[FIRST + code] for *_, code in IN_STEP]
    found = outcomes_of(programs, tmp_path_factory.mktemp("blocks"), RANKS, MPISHARE_NODES=NODES, **PLAIN)
    return [result for [result] in found]


@pytest.mark.parametrize("number", range(len(IN_STEP)))
def test_block(number, outcomes):
    _, does, text, _ = IN_STEP[number]
    outcome = outcomes[number]
    if does == "raises":
        assert any(error.startswith(text) for error in outcome["raised"]), outcome
    else:
        assert outcome["raised"] == [""] * RANKS
        assert outcome["printed"][0].startswith(text), outcome


@pytest.mark.parametrize(("settings", "does", "text", "code"), ALONE)
def test_block_that_ends_the_job(settings, does, text, code):
    environ = dict(re.findall(r"(\w+)=(\w+)", settings))
    ended = run_code(RANKS, FIRST + code, {"MPISHARE_NODES": "", **environ}, status="failure")
    assert text in ended.stdout + ended.stderr


def test_each_block_is_run():
    assert len(BLOCKS) + 1 == PAGE.count("```python\n")
