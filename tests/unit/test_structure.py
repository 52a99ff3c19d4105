"""The shape of the package: folders that import downwards, public names in one place, an import that does nothing."""

import ast
import inspect
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import mpishare as ms
from mpishare import kernels

PACKAGE = Path(ms.__file__).parent

LAYERS = [
    {"_version", "config", "errors"},
    {"arrays", "host"},
    {"comm"},
    {"memory", "transfer"},
    {"objects"},
    {"messages", "progress_bar"},
    {"collectives", "files", "checkpoints", "tasks", "kernels"},
    {"__init__"},
    {"cli", "compat", "__main__"},
]
"""Folders, and modules of the root, the lowest first. Each imports those of its own row and of the rows before it."""


def source_of(file):
    return ast.parse(file.read_text())


FILES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}


def imports_of(tree):
    """The full names that a file imports at run time, anywhere in it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide their layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in FILES else str(node.module) for name in names)
        else:
            yield from imports_of(node)


IMPORTS = {name: set(imports_of(source_of(file))) for name, file in FILES.items()}


def layer_of(module):
    """The number of the layer of a module; 0 is the lowest."""
    first = [*module.split("."), "__init__"][1]
    return next(number for number, names in enumerate(LAYERS) if first in names)


def test_imports_point_down():
    """None leads up or in a circle."""
    own = {name: IMPORTS[name] & FILES.keys() - {"mpishare", "mpishare.comm.mpi"} for name in FILES}
    assert [(name, other) for name in own for other in own[name] if layer_of(other) > layer_of(name)] == []
    assert [name for name in own if "mpishare.kernels" in own[name]] == []
    pure = [name for name in own if layer_of(name) <= layer_of("mpishare.arrays")]
    assert not [name for name in pure for imported in IMPORTS[name] if imported.startswith("mpi4py")]
    TopologicalSorter(own).prepare()


def test_programs_use_the_public_face_only():
    folders = [PACKAGE.parent / "jobs", PACKAGE / "cli", PACKAGE / "compat"]
    programs = [file for folder in folders for file in folder.rglob("*.py")]
    # config, for the sizes that users write; host, for the files that `mpishare clean` removes.
    public = ("mpishare.cli", "mpishare.kernels", "mpishare.config", "mpishare.host")
    for file in programs:
        names = [name for name in imports_of(source_of(file)) if name.startswith("mpishare.")]
        assert all(name.startswith(public) or name.split(".")[1] in ms.__all__ for name in names), (file, names)
        assert set(re.findall(r"\bms\.(\w+)", file.read_text())) <= {*ms.__all__, "__version__"}, file


def test_names_are_those_that_type_checkers_see():
    imports = [node for node in source_of(PACKAGE / "__init__.pyi").body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}
    assert modules.keys() == set(ms.__all__) <= set(dir(ms))
    assert all(getattr(ms, name) is getattr(import_module(module), name) for name, module in modules.items())
    assert {f"mpishare.{name}" for name in ms.__all__}.isdisjoint(FILES), "importing the module would hide the name"
    with pytest.raises(AttributeError, match=r"module 'mpishare' has no attribute 'shares'$"):
        ms.shares  # type: ignore[attr-defined]  # noqa: B018 - mypy must see that there is none


CURES = {
    "barrier": "fence for the ranks of a node, fence(scope='all') or mpi4py's comm.Barrier()",
    "reduce": "allreduce, gather, or mpi4py's comm.reduce",
    "Alltoall": "mpi4py's comm.alltoall or comm.Alltoall, or distribute",
    "Array": "share for one copy per node",
    "Bcast": "share for what one rank has",
    "Allreduce": "allreduce.",
}


@pytest.mark.parametrize("name", CURES)
def test_a_name_of_another_library_leads_to_one_of_ours(name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. Use {re.escape(CURES[name])}"):
        getattr(ms, name)
    assert not hasattr(ms, name)
    assert set(re.findall(r"\w+", CURES[name])) & set(ms.__all__)


PUBLIC = [getattr(module, name) for module in (ms, kernels) for name in module.__all__]


@pytest.mark.parametrize("call", [item for item in PUBLIC if inspect.isfunction(item)], ids=lambda call: call.__name__)
def test_docstrings_have_their_sections(call):
    text = inspect.getdoc(call) or ""
    parameters = inspect.signature(call).parameters
    assert "Example:" in text
    assert ("Args:" in text) == bool(parameters)
    for parameter in parameters:
        assert re.search(rf"^    {parameter}: ", text, re.MULTILINE), parameter
    collective = text.partition("Collective:\n")[2].partition("\n\n")[0]
    assert ("over" in collective.lower()) == ("comm" in parameters)
    assert collective


IMPORTS_ALL = """
import os, random, signal, sys, numpy as np
def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    chance = random.getstate(), str(np.random.get_state())
    return dict(os.environ), handlers, chance, os.listdir('/proc/self/fd')
before = state()
from mpishare import *
import mpishare, inspect, pydoc
pydoc.render_doc(mpishare)
optional = {'numba', 'h5py', 'pandas', 'lz4', 'tqdm', 'cloudpickle', 'astropy', 'polars', 'pyarrow', 'torch', 'joblib'}
assert not {'mpi4py.MPI', *optional} & set(sys.modules)
assert state() == before
"""


def test_import_is_inert():
    """And needs no optional package."""
    ended = subprocess.run([sys.executable, "-c", IMPORTS_ALL], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
