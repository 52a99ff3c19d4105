"""The manual: each block of Python in docs/ and in READMEs runs and prints what is shown, and so does each command.

The blocks of a page are one program, which runs on 4 ranks, as 2 pretend nodes of 2. A block of text right after a
block prints what it prints, on all ranks in their order; "..." stands for anything. An error that it raises is
its last line.
"""

import json
import re

import pytest

from tests.blackbox.launch import PROGRAMS, ROOT, run_ranks
from tests.blackbox.test_commands import result_of

DOCS = ROOT / "docs"
PAGES = {str(file.relative_to(DOCS)): file.read_text() for file in sorted(DOCS.rglob("*.md"))}
OTHERS = ["CONTRIBUTING.md", "jobs/README.md", "jobs/ports/README.md", "slurm/README.md"]
"""Besides README.md, which has test_commands.py, and SHARP_BITS.md, which has test_sharp_bits.py."""
PAGES |= {name: (ROOT / name).read_text() for name in OTHERS}
FENCE = re.compile(r"^```(\S*).*\n((?s:.*?))^```$", re.MULTILINE)
CODE = re.compile(r"^```python\n((?s:.*?))^```\n(?:\n```text\n((?s:.*?))^```\n)?", re.MULTILINE)
RANKS, NODES = 4, "block:2"

NOT_RUN = (
    # Tests, or commands that another test runs: tests.bare, test_ports.py, tests/cluster/test_slurm.py,
    # test_ipyparallel.py.
    *("ipcluster ", "make ", "python -m tests.", ".venv/bin/python -m tests.", "python -m pytest", "sbatch ", "srun "),
    *("mpishare run -n 2 python -m pytest", "mpishare run -n 3 python -m pytest", "mpishare run -n 4 -m jobs.ports."),
    "MPISHARE_NODES=sizes:1,3 mpishare run -n 4 python -m pytest",
    # They change this environment, or need what is not here.
    *("git ", "python3 -m venv", "python -m pip", "pip ", ". ", "apptainer ", "docker ", "module ", "scontrol "),
)
"""The first words of commands that do not run here."""

FIRST = ("start/", "tutorials/")
"""Where a reader begins."""
NOTEBOOK = "how-to/jupyter.md"
"""Its blocks are cells of a notebook, which test_ipyparallel.py runs."""
BLOCKS = {name: CODE.findall(text) for name, text in PAGES.items() if CODE.search(text) and name != NOTEBOOK}
COMMANDS = [
    (name, lines[0], lines[1:])
    for name, text in PAGES.items()
    for language, block in FENCE.findall(text)
    if language == "console"
    for lines in (part.splitlines() for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:])
    if not lines[0].startswith(NOT_RUN)
]


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The outcomes of the blocks of all pages of this session, in one job."""
    items = [item for item in request.session.items if item.originalname == "test_the_blocks_of_a_page"]
    pages = [item.callspec.params["page"] for item in items]
    programs = [[code for code, _ in BLOCKS[page]] for page in pages]
    found = outcomes_of(programs, tmp_path_factory.mktemp("manual"), RANKS, MPISHARE_NODES=NODES)
    return dict(zip(pages, found, strict=True))


def outcomes_of(programs, folder, size, **settings):
    """The outcomes of programs, each a list of blocks, in one job of `size` ranks."""
    (file := folder / "blocks.json").write_text(json.dumps(programs))
    ended = run_ranks(size, ["-m", f"{PROGRAMS}.blocks", str(file)], {"MPISHARE_TIMEOUT": "60", **settings})
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.first] if page.startswith(FIRST) else []) for page in BLOCKS]
)
def test_the_blocks_of_a_page(page, outcomes):
    for (code, shown), outcome in zip(BLOCKS[page], outcomes[page], strict=True):
        errors = dict.fromkeys(error for error in outcome["raised"] if error)
        output = "".join(outcome["printed"]) + "".join(f"{error}\n" for error in errors)
        assert is_shown(output, shown), f"{page}\n{code}\nprints\n{output}"


@pytest.mark.parametrize(("page", "command", "shown"), COMMANDS)
def test_a_command(page, command, shown):
    output = result_of(f"env {command}" if re.match(r"\w+=", command) else command).stdout
    output, shown = (text.replace("'", "") for text in (output, "\n".join(shown)))  # which a path with a space has
    ordered = (
        "".join(sorted(output.splitlines(keepends=True))),
        "".join(f"{line}\n" for line in sorted(shown.split("\n"))),
    )
    assert not shown or is_shown(output, f"{shown}\n") or is_shown(*ordered), output


def is_shown(output, shown):
    """Whether it is what a page shows. Ranks print in any order."""
    return re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*"), output, re.DOTALL) is not None
