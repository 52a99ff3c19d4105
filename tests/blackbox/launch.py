"""Runs a program under mpiexec, with a limit on its time, and looks at what it left."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mpishare.cli import run as launcher
from tests.processes import living_in_session, wait_until

ROOT = Path(__file__).parent.parent.parent
AS_ROOT = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
"""The options by which unshare(1) makes an ordinary user root of its namespaces."""


def python_of(mpi):
    """The Python of another MPI, which make sets up."""
    return ROOT / f".venv-{mpi}" / "bin" / "python"


def other_python(mpi):
    """The same as text. A test that needs it is skipped where it was not set up."""
    if not python_of(mpi).exists():
        import pytest

        pytest.skip(f"there is no .venv-{mpi}; make test-all creates it")
    return str(python_of(mpi))


PROGRAMS = "tests.blackbox.programs"

OPEN_MPI = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_pml": "ob1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",  # Open MPI 5
    "OMPI_MCA_hwloc_base_binding_policy": "none",  # Open MPI 4
}
"""Patience, as ranks share cores; no look for networks, which takes up to 1 s of each MPI_Init (5.0.11); and ranks that
are not bound, because every job on the machine binds its rank 0 to the same core. `make demo` runs without all this in
tests/blackbox/test_commands.py."""


MADE_BY_BUILD = {"PKG-INFO", "setup.cfg"}
"""What a source distribution has besides the project's files and its own list of them."""


def project_files():
    """The names of the project's files: as git knows them, or the source distribution that this is."""
    if (ROOT / ".git").exists():
        line = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        return set(subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines())
    names = map(os.path.normpath, (ROOT / "mpishare.egg-info" / "SOURCES.txt").read_text().splitlines())
    return {name for name in names if not name.startswith("mpishare.egg-info/")} - MADE_BY_BUILD


def copy_project(folder):
    """Copies the project's files to a folder."""
    for name in project_files():
        copied = Path(folder, name)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copied)


ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""NumPy's BLAS else starts a thread for each core on each rank, a tenth of the time of a small job."""


def environment(extra):
    """The environment of a shell in which this Python's folder comes first on PATH.

    Bytecode is kept, so that pytest does not read and rewrite its plugins and the tests on each rank of each launch.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**OPEN_MPI, **ONE_THREAD, **os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "", **extra}


PLAIN = ["--", "env", sys.executable]
"""Plain python, which `mpishare run` does not take for Python and so runs without `-m mpi4py`."""


def run(command, environ=None, *, status=0, limit_s=300, is_cleaned=False):
    """Runs `command` in the project's folder, and demands that it leaves nothing and ends with exit status `status`.

    The status "failure" is any but 0; "any" demands nothing. Past `limit_s` it is killed with all it started, and the
    test fails. Where `is_cleaned`, `mpishare clean` removes what it left.
    """
    with nothing_left() as settings:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment({**settings, **(environ or {})}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{command} did not end in {limit_s} s\n{out}\n{err}") from None
        # mpiexec ends before a rank that it has killed where that needs time to die: it still holds its files.
        wait_until(lambda: not living_in_session(process.pid), 60, lambda: f"{command} left processes")
        if is_cleaned:
            clean(*{*settings.values()})
    return checked(subprocess.CompletedProcess(command, process.returncode, out, err), status)


def clean(folder):
    """Has `mpishare clean` remove what ended jobs left in a folder."""
    age(folder)
    ended = run([sys.executable, "-m", "mpishare", "clean", "--yes", "--dir", str(folder)])
    assert "left" not in ended.stdout, ended.stdout


def age(folder):
    """Makes the files in a folder older than the second for which a file counts as being made."""
    for file in Path(folder).iterdir():
        os.utime(file, (1, 1))


def checked(ended, status=0):
    """The same, whose exit status must be `status`."""
    is_right = status == "any" or (ended.returncode != 0 if status == "failure" else ended.returncode == status)
    assert is_right, f"exit status {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended


def run_ranks(size, args, environ=None, **options):
    """Runs words such as `prog.py` on `size` ranks: what `mpishare run` does, less the start of one more Python."""
    sorted_args = launcher.split(["-n", str(size), *args])
    added = launcher.additions(sorted_args[0], environment(environ or {}))
    return run(launcher.command(*sorted_args), {**added, **(environ or {})}, **options)


def run_code(size, code, environ=None, **options):
    """Runs Python code on `size` ranks by plain python: nothing ends the job but what the library does."""
    return run_ranks(size, [*PLAIN, "-c", code], environ, **options)


@contextmanager
def started(line, environ, first):
    """The command in the background, once it has printed a line that begins with `first`; killed with the block."""
    with subprocess.Popen(
        line, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert any(line.startswith(first) for line in process.stdout)
            yield process
        finally:
            process.kill()


@contextmanager
def nothing_left():
    """Settings that have Open MPI put its files into a folder of /dev/shm; fails when the block leaves one there."""
    with TemporaryDirectory(prefix="tests-", dir="/dev/shm") as folder:
        yield {f"OMPI_MCA_{component}_backing_directory": folder for component in ("btl_sm", "osc_sm")}
        left = [file.name for file in Path(folder).iterdir()]
    assert left == [], left
