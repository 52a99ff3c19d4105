"""Runs the cells of the JSON file argv[1] in IPython, as a notebook does; the last line tells what each printed."""

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()


def output_of(cell):
    """What a cell printed."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        shell.run_cell(cell).raise_error()
    return printed.getvalue()


print(json.dumps([output_of(cell) for cell in json.loads(Path(sys.argv[1]).read_text())]))
