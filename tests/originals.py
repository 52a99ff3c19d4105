"""Files of other libraries, out of their own packages: their tests, with the imports changed to mpishare.compat's."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tests.blackbox.launch import ROOT


def archive_of(package):
    """The package's archive, which `make test` fetches."""
    archives = [*(ROOT / "build" / "originals").glob(f"{package}-*")]
    assert len(archives) == 1, f"{archives} for {package}: `make build/originals/ready` fetches one."
    return archives[0]


def load(package, path, changes):
    """A file of an installed package as a module, after each text of `changes` has been replaced by another.

    The package itself is not imported. The module is one of this process's, so that its functions can be pickled.
    """
    return load_text(f"original_{package}_{Path(path).stem}", source_of(package, path), changes)


def source_of(package, path):
    """The text of a file of an installed package, which is not imported."""
    [folder] = find_spec(package).submodule_search_locations or [""]
    return (Path(folder) / path).read_text()


def load_text(name, text, changes):
    """The same for the text of a file."""
    for before, after in changes.items():
        assert before in text, f"{name} has no {before!r}"
        text = text.replace(before, after)
    module = sys.modules[name] = ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module
