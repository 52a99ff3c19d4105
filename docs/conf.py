"""Settings of Sphinx for the manual, which `make docs` builds without a network."""

import re
import tempfile
import zlib
from pathlib import Path

from mpishare import __version__

project = "mpishare"
copyright = "the mpishare developers"  # noqa: A001 - Sphinx's name
release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["examples/*", "packaging/*"]

html_theme = "furo"
html_title = f"mpishare {release}"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_js_files = ["tables.js"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "DTypeLike", "NDArray")}  # which are long else
copybutton_prompt_text = "$ "
autodoc_mock_imports = ["cloudpickle", "joblib"]
default_role = "py:obj"  # single backquotes in docstrings: a link where the name is ours, else code
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    (
        "py:class",
        r"(collections\.abc|concurrent|np|numpy\._typing|os|MPI|mpi4py)\..*|\w+Like|TypeAliasForwardRef|NDArray|.*\._T|ms\.Pool",
    ),  # types
    (
        "py:class",
        r"mpishare\.(arrays|checkpoints|comm|host|objects|tasks|transfer)\..*",
    ),  # of attributes; they have no page
]
napoleon_custom_sections = ["Collective", "Source"]

ELSEWHERE = {
    "https://docs.python.org/3": [
        (
            "py:exception",
            "library/exceptions.html",
            "Exception IndexError MemoryError OSError TimeoutError TypeError ValueError",
        ),
        ("py:exception", "library/concurrent.futures.html", "concurrent.futures.TimeoutError"),
        ("py:class", "library/concurrent.futures.html", "concurrent.futures.Executor concurrent.futures.Future"),
        ("py:class", "library/pathlib.html", "pathlib.Path"),
    ],
    "https://numpy.org/doc/stable": [
        ("py:class", "reference/generated/{}.html", "numpy.ndarray numpy.dtype"),
        ("py:function", "reference/generated/{}.html", "numpy.asarray numpy.load numpy.save"),
    ],
    "https://mpi4py.readthedocs.io/en/stable": [
        ("py:class", "reference/{}.html", "mpi4py.MPI.Comm mpi4py.MPI.Intracomm mpi4py.MPI.Win"),
    ],
}
"""The names of other manuals to which pages link: by the address of the manual, their kind and their page."""

INVENTORIES = tempfile.TemporaryDirectory()


def inventory(names: list[tuple[str, str, str]]) -> str:
    """A file that lists names and their pages as intersphinx reads it, so that no build fetches whole lists."""
    lines = [
        f"{name} {kind} 1 {page.format(name)}#{name} -\n" for kind, page, listed in names for name in listed.split()
    ]
    head = "# Sphinx inventory version 2\n# Project: -\n# Version: -\n# The remainder is compressed using zlib.\n"
    file = Path(INVENTORIES.name) / f"{names[0][2].split()[0]}.inv"
    file.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))
    return str(file)


intersphinx_mapping = {
    address.split("/")[2].partition(".")[0]: (address, inventory(names)) for address, names in ELSEWHERE.items()
}


def example_first(_app, _what, _name, _obj, _options, lines):
    """Moves the example of a docstring behind the first paragraph, so that readers of a phone need not scroll to it."""
    if "Example:" in lines:
        start = lines.index("Example:")
        stop = next((n for n in range(start + 1, len(lines)) if lines[n][:1].strip()), len(lines))
        example = ["", *lines[start:stop], ""]
        del lines[start:stop]
        place = lines.index("")
        lines[place:place] = example


def setup(app):
    """Signatures name the classes of MPI as users import them."""

    def of_users(_app, _what, _name, _obj, _options, signature, returned):
        return signature and re.sub(r"\b(mpi\.)?(Comm|Op|Status)\b", r"MPI.\2", signature), returned

    app.connect("autodoc-process-signature", of_users)
    app.connect("autodoc-process-docstring", example_first, priority=400)  # before napoleon reads the sections
