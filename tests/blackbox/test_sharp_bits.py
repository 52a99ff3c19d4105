"""SHARP_BITS.md: what it says to avoid does what it says, and what it says to do instead works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.blackbox.launch import PROGRAMS, ROOT, run_code, run_ranks

PAGE = (ROOT / "SHARP_BITS.md").read_text()
FIRST, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RANKS, NODES = 3, "block:2"
ONE_THREAD_EACH = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}


class Block(NamedTuple):
    """A piece of code, and what the page says of it."""

    title: str
    kind: str
    settings: dict[str, str]
    does: str
    words: str
    code: str


def blocks() -> list[Block]:
    """All that follow a comment, which says how to run it and what comes of it."""
    found, title = [], ""
    form = r"^### (.*?)$|^<!-- (don't|instead|fine)(.*?)(?:: (\w+) (.*?))? -->\n```python\n(.*?)```"
    for heading, kind, settings, does, words, code in re.findall(form, PAGE, re.DOTALL | re.MULTILINE):
        title = heading or title
        if not heading:
            named = dict(re.findall(r"(\w+)=(\w+)", settings))
            alone = {"alone": ""} if "alone" in settings else {}
            found.append(Block(title, kind, {**named, **alone}, does, words, FIRST + code))
    return found


TOGETHER = [block for block in blocks() if "alone" not in block.settings]
ALONE = [block for block in blocks() if "alone" in block.settings]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """What came of those that leave the ranks in step, in one job."""
    file = tmp_path_factory.mktemp("blocks") / "blocks.json"
    file.write_text(json.dumps([block.code for block in TOGETHER]))
    settings = {"MPISHARE_NODES": NODES, "MPISHARE_TIMEOUT": "30"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ONE_THREAD_EACH:
            patch.delenv(name, raising=False)
        ended = run_ranks(RANKS, ["-m", f"{PROGRAMS}.blocks", str(file)], settings, limit_s=100)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, list[str]]] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("number", range(len(TOGETHER)), ids=lambda number: f"{TOGETHER[number].title} {number}")
def test_block(number: int, outcomes: list[dict[str, Any]]) -> None:
    block, told = TOGETHER[number], outcomes[number]
    if block.does == "raises":
        assert any(words.startswith(block.words) for words in told["raised"]), told
    else:
        assert told["raised"] == [""] * RANKS
    if block.does == "prints":
        assert told["printed"][0].startswith(block.words), told


@pytest.mark.parametrize("block", ALONE, ids=lambda block: block.title)
def test_block_that_ends_the_job(block: Block) -> None:
    settings = {name: value for name, value in block.settings.items() if name != "alone"}
    ended = run_code(RANKS, block.code, {"MPISHARE_NODES": "", **settings})
    assert ended.returncode != 0
    assert block.words in ended.stdout + ended.stderr


def test_each_bit_has_both_sides() -> None:
    titles = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    for title in titles:
        assert {block.kind for block in blocks() if block.title == title} >= {"don't", "instead"}, title
    commented = [block.code.removeprefix(FIRST) for block in blocks()]
    assert [FIRST, *commented] == re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert Path(ROOT / "SHARP_BITS.md").name in (ROOT / "README.md").read_text()
