"""SHARP_BITS.md: what it says to avoid does what it says, and what it says to do instead works."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.blackbox.launch import PROGRAMS, ROOT, run_code, run_ranks

PAGE = (ROOT / "SHARP_BITS.md").read_text()
FIRST, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RANKS, NODES = 3, "block:2"
ONE_THREAD_EACH = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}


class Block(NamedTuple):
    """A block of code, and what the page promises of it."""

    title: str
    kind: str
    settings: str
    does: str
    text: str
    code: str


def blocks():
    """All that follow a comment, which gives the settings and the outcome."""
    result, title = [], ""
    form = r"^### (.*?)$|^<!-- (don't|instead|fine)(.*?)(?:: (\w+) (.*?))? -->\n```python\n(.*?)```"
    for heading, kind, settings, does, text, code in re.findall(form, PAGE, re.DOTALL | re.MULTILINE):
        title = heading or title
        if not heading:
            result.append(Block(title, kind, settings, does, text, FIRST + code))
    return result


IN_STEP = [block for block in blocks() if "alone" not in block.settings]
ALONE = [block for block in blocks() if "alone" in block.settings]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcomes of those that leave the ranks in step, in one job."""
    file = tmp_path_factory.mktemp("blocks") / "blocks.json"
    file.write_text(json.dumps([[block.code] for block in IN_STEP]))
    settings = {"MPISHARE_NODES": NODES, "MPISHARE_TIMEOUT": "30", "OPENBLAS_NUM_THREADS": ""}
    with pytest.MonkeyPatch.context() as patch:
        for name in ONE_THREAD_EACH:
            patch.delenv(name, raising=False)
        ended = run_ranks(RANKS, ["-m", f"{PROGRAMS}.blocks", str(file)], settings)
    return [result for [result] in json.loads(ended.stdout.splitlines()[-1])]


@pytest.mark.parametrize("number", range(len(IN_STEP)), ids=lambda number: f"{IN_STEP[number].title} {number}")
def test_block(number, outcomes):
    block, outcome = IN_STEP[number], outcomes[number]
    if block.does == "raises":
        assert any(error.startswith(block.text) for error in outcome["raised"]), outcome
    else:
        assert outcome["raised"] == [""] * RANKS
    if block.does == "prints":
        assert outcome["printed"][0].startswith(block.text), outcome


@pytest.mark.parametrize("block", ALONE, ids=lambda block: block.title)
def test_block_that_ends_the_job(block):
    settings = dict(re.findall(r"(\w+)=(\w+)", block.settings))
    ended = run_code(RANKS, block.code, {"MPISHARE_NODES": "", **settings}, status="failure")
    assert block.text in ended.stdout + ended.stderr


def test_each_bit_has_both_sides():
    titles = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    for title in titles:
        assert {block.kind for block in blocks() if block.title == title} >= {"don't", "instead"}, title
    commented = [block.code.removeprefix(FIRST) for block in blocks()]
    assert [FIRST, *commented] == re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert Path(ROOT / "SHARP_BITS.md").name in (ROOT / "README.md").read_text()
