"""Files of other libraries, out of their own packages: their tests, with the imports changed to mpishare.compat's.

`python -m tests.originals FOLDER` unpacks the archives that `make` has fetched.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tests.blackbox.launch import ROOT


def unpack(folder):
    """Replaces each archive in a folder by a folder of its files, with the name of the package."""
    for archive in [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]:
        kind = "zip" if archive.suffix == ".whl" else "gztar"
        shutil.unpack_archive(archive, folder / archive.name.partition("-")[0], kind)
        archive.unlink()


def original(package):
    """The folder of a package's files."""
    folder = ROOT / "build" / "originals" / package
    assert folder.is_dir(), f"{folder} is missing: `make build/originals/ready` fetches it"
    inner = [*folder.iterdir()]
    return inner[0] if len(inner) == 1 else folder  # which a source archive begins with


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


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
