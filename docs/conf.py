"""Settings of Sphinx for the manual, which `make docs` builds without a network."""

import inspect
import re
import tempfile
import zlib
from pathlib import Path

from docutils import nodes

import mpishare

project = "mpishare"
copyright = "the mpishare developers"  # noqa: A001 - Sphinx's name
release = mpishare.__version__

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
TALL = "drawings/tall"
html_static_path = ["static", TALL]
html_css_files = ["tables.css", "contents.css"]
html_js_files = ["tables.js"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "DTypeLike", "NDArray")}  # which are long else
copybutton_prompt_text = "$ "
autodoc_mock_imports = ["cloudpickle", "ipyparallel", "joblib"]
default_role = "py:obj"  # single backquotes in docstrings: a link where the name is ours, else code
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    (
        "py:class",
        r"(collections\.abc|concurrent|np|numpy\._typing|os|MPI|mpi4py)\..*|\w+Like|TypeAliasForwardRef|NDArray|(.*\.)?_T|ms\.Pool|Client|DirectView",
    ),  # types
    (
        "py:class",
        r"mpishare\.(arrays|checkpoints|comm|host|objects|tasks|transfer)\..*",
    ),  # of attributes; they have no page
    ("py:exc", r"ipyparallel\..*"),
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


def sections_first(_app, _what, _name, _obj, _options, lines):
    """Moves who takes part, and the example, behind a docstring's first paragraph, where readers see them at once."""
    for title in ("Example:", "Collective:"):
        if title in lines:
            start = lines.index(title)
            stop = next((n for n in range(start + 1, len(lines)) if lines[n][:1].strip()), len(lines))
            section = ["", *lines[start:stop], ""]
            del lines[start:stop]
            place = lines.index("")
            lines[place:place] = section


def tabulate_arguments(_app, _page, source):
    """Puts a table of the functions of a page, with their arguments, at the mark for it."""
    if "<!-- arguments -->" not in source[0]:
        return
    rows = ["| call | arguments | keywords | collective |", "|---|---|---|---|"]
    for name in re.findall(r"autofunction:: mpishare\.(\w+)$", source[0], re.MULTILINE):
        function = getattr(mpishare, name)
        cells = {True: [], False: []}
        for parameter in inspect.signature(function).parameters.values():
            default = parameter.default
            given = "" if default is parameter.empty else f"={getattr(default, '__name__', repr(default))}"
            cells[parameter.kind is parameter.KEYWORD_ONLY].append(f"`{parameter.name}{given}`")
        [taking_part] = re.findall(r"Collective:\n(.*?)(?:\n\s*\n|\s*$)", inspect.getdoc(function), re.DOTALL)
        texts = (
            f"{{py:func}}`~mpishare.{name}`",
            *map(", ".join, (cells[False], cells[True])),
            taking_part.split(". ")[0],
        )
        rows.append(f"| {' | '.join(' '.join(text.split()) for text in texts)} |")
    source[0] = source[0].replace("<!-- arguments -->", "\n".join(rows))


def offer_tall_drawings(app, _page, _template, context, _doctree):
    """Lets narrow screens take the tall form of a drawing, whose text they can show at its size."""

    def picture(image):
        tall = context["pathto"](f"_static/{image[1]}.svg", resource=True)
        return f'<picture><source media="(max-width: 46em)" srcset="{tall}">{image[0]}</picture>'

    names = "|".join(file.stem for file in Path(app.srcdir, TALL).glob("*.svg"))
    context["body"] = re.sub(rf'<img [^>]*_images/({names})\.svg"[^>]*>', picture, context.get("body", ""))


def write_llms_txt(app, exception):
    """Lists the pages for language models, as llmstxt.org says: the title and the first paragraph of each."""
    if exception or app.builder.format != "html":
        return

    def listed(page, depth=0):
        title, section = app.env.titles[page].astext(), app.env.get_doctree(page).next_node(nodes.section)
        first = next((child.astext() for child in section if isinstance(child, nodes.paragraph)), "")
        summary = first and ": " + " ".join(first.split())
        yield f"\n## {title}\n" if depth == 1 else ""
        yield f"- [{title}]({page}.html){summary}" if depth else f"# {title}\n\n> {summary[2:]}"
        for below in app.env.toctree_includes.get(page, []):
            yield from listed(below, depth + 1) if below in app.env.titles else ()

    lines = filter(None, listed(app.config.root_doc))
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app):
    """Signatures name the classes of MPI as users import them."""

    def of_users(_app, _what, _name, _obj, _options, signature, returned):
        return signature and re.sub(r"\b(mpi\.)?(Comm|Op|Status)\b", r"MPI.\2", signature), returned

    app.connect("autodoc-process-signature", of_users)
    app.connect("autodoc-process-docstring", sections_first, priority=400)  # before napoleon reads the sections
    app.connect("source-read", tabulate_arguments)
    app.connect("html-page-context", offer_tall_drawings)
    app.connect("build-finished", write_llms_txt)
