"""What packagers get: a source distribution that has the tests and passes them, and a wheel, both of which twine takes.

Built without isolation, and so without a network.
"""

import os
import re
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from mpishare import __version__
from tests.blackbox.launch import MADE_BY_BUILD, ROOT, copy_project, project_files, run
from tests.originals import original


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The source distribution, unpacked, and the wheel that was built from it; twine has found nothing wrong."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    source.mkdir()
    copy_project(source)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)])
    [archive], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    checked = run([sys.executable, "-m", "twine", "check", "--strict", str(archive), str(wheel)])
    assert checked.stdout.count("PASSED") == 2, checked.stdout
    run(["tar", "-xzf", str(archive), "-C", str(folder)])
    return folder / f"mpishare-{__version__}", wheel


def test_the_sdist_has_every_file_of_the_project(dist):
    files = {str(file.relative_to(dist[0])) for file in dist[0].rglob("*") if file.is_file()}
    extra = {name for name in files - project_files() if not name.startswith("mpishare.egg-info/")}
    assert (project_files() - files, extra) == (set(), MADE_BY_BUILD)


def test_the_wheel_has_the_package_and_the_licence_alone(dist):
    with zipfile.ZipFile(dist[1]) as wheel:
        names = wheel.namelist()
        metadata = message_from_string(wheel.read(f"mpishare-{__version__}.dist-info/METADATA").decode())
    package = {name for name in project_files() if name.startswith("mpishare/")}
    assert {name for name in names if ".dist-info/" not in name} == package
    assert any(name.endswith("/LICENSE") for name in names)
    assert "License :: OSI Approved :: BSD License" in (metadata.get_all("Classifier") or [])
    assert metadata.get_payload().startswith("# mpishare\n")


def test_the_setuptools_of_old_toolchains_builds_the_same(dist, tmp_path):
    """Without isolation. Before Python 3.12 it is the oldest that pyproject.toml allows."""
    environ = {"PYTHONPATH": os.pathsep.join(str(original(name)) for name in ("setuptools", "wheel"))}
    archive = dist[0].with_name(f"{dist[0].name}.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run([*pip, "--wheel-dir", str(tmp_path), str(archive)], environ)
    [built] = tmp_path.glob("*.whl")
    assert b"Generator: bdist_wheel (0.45.1)" in contents(built, "WHEEL")
    assert contents(built) == contents(dist[1])
    assert contents(built, "entry_points.txt") == contents(dist[1], "entry_points.txt")
    always = re.compile(rb"^Requires-[^;\n]*$", re.MULTILINE)
    needs = [always.findall(contents(wheel, "METADATA")) for wheel in (built, dist[1])]
    assert len(needs[0]) == 3  # Python, mpi4py and NumPy, besides the extras, which come in any order
    assert needs[0] == needs[1]


def contents(wheel, name=None):
    """The files of a wheel's package, or the file of its metadata that has this name."""
    with zipfile.ZipFile(wheel) as files:
        if name:
            return files.read(f"mpishare-{__version__}.dist-info/{name}")
        return {name: files.read(name) for name in files.namelist() if ".dist-info/" not in name}


def test_the_wheel_runs_the_first_program_of_the_manual(dist, tmp_path):
    """Installed by pip in an environment of its own, beside the packages of these tests."""
    program = (ROOT / "docs/examples/first.py").read_text()
    example, folder = tmp_path / "example.py", tmp_path / "venv"
    example.write_text(program + "    import sys\n    print(ms.__file__, file=sys.stderr)\n")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(dist[1])], {"PYTHONPATH": ""})
    environ = {"PYTHONPATH": sysconfig.get_path("purelib")}
    environ["PATH"] = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = run(["env", "-C", str(tmp_path), "mpishare", "run", "-n", "4", "example.py"], environ)
    assert ended.stdout == "60.0 576 bytes saved\n"
    assert str(folder) in ended.stderr


def test_the_long_description_shows_no_picture_and_no_file_that_an_index_lacks(dist):
    text = (dist[0] / "PKG-INFO").read_text()
    targets = re.findall(r"\]\(([^)\s]*)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL))
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "![" not in text


def test_the_sdist_passes_its_tests(dist):
    """All unit tests are collected, those of documents and arrays run, and a job starts."""
    there, environ = ["env", "-C", str(dist[0]), sys.executable, "-m"], {"PYTHONPATH": str(dist[0])}
    tests = run([*there, "pytest", "-q", "--color=no", "tests/unit", "-k", "test_documents or unit/arrays"], environ)
    assert re.search(r"\d passed, \d+ deselected", tests.stdout), tests.stdout
    job = run([*there, "mpishare", "run", "-n", "2", "jobs/broadcast.py", "--shape", "64,64"], environ)
    assert "all 2 ranks agree" in job.stdout
