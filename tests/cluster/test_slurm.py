"""The batch scripts of slurm/, submitted for real; jobs that fail, that are cancelled, that are started wrongly."""

import re
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.blackbox.launch import ROOT, other_python, run
from tests.cluster.spec import HEAD
from tests.processes import wait_until

SCRIPTS = {"mpiexec": 1, "array": 3, "hybrid": 1, "apptainer": 1, "acceptance": 1}
"""The number of jobs that each makes."""
RANKS = {"mpiexec": 6, "array": 2, "apptainer": 4}
"""The ranks of each job that shares an array, two on each host."""
CHECKED = {"hybrid": "2 ranks on 2 nodes agree with rank 0 alone", "acceptance": "acceptance: passed"}
APPTAINER = """#!/bin/sh
[ "$1 $2 $4" = "exec --bind mpishare.sif" ] && shift 4 && exec unshare --user --map-current-user -- "$@"
"""
"""What is tested of Apptainer: that each rank has a user namespace of its own."""
PYTHON = shlex.quote(sys.executable)
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


@pytest.fixture(scope="module")
def slurm(make):
    """Three hosts of two slots under Slurm."""
    return make(3, slurm=True)


def submit(slurm, *args, environ=()):
    """Submits a job from the project's folder, with `environ` in its environment; its number."""
    return slurm.exec(HEAD, ["env", *environ, "sbatch", "--parsable", f"--chdir={ROOT}", *args]).stdout.strip()


def shown(slurm, job):
    """All that Slurm says of the job."""
    return slurm.exec(HEAD, ["scontrol", "show", "job", job]).stdout


def states(slurm, job):
    """The state of each job of an array, or of the one job."""
    return re.findall(r"JobState=(\w+)", shown(slurm, job))


def wait(slurm, job, wanted=ENDED):
    """The states of the job once all are among `wanted`."""
    wait_until(
        lambda: (reached := states(slurm, job)) and {*wanted}.issuperset(reached), 400, partial(shown, slurm, job)
    )
    return states(slurm, job)


def wait_for(text, file):
    """Waits until a job has written `text`."""
    wait_until(lambda: file.exists() and text in file.read_text(), 300)


def test_the_commands_of_contributing(tmp_path):
    """The first opens a shell, which ends at once without input; the second submits srun.sbatch."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    commands = [line.split() for line in re.findall(r"^\$ \.venv/bin/python (-m tests\.cluster.*)", text, re.MULTILINE)]
    assert len(commands) == 2
    for command in commands:
        run([sys.executable, *command], {"SBATCH_OUTPUT": f"{tmp_path}/job"})
    assert "agree bit for bit" in (tmp_path / "job").read_text()


def test_scripts_end_completed_with_their_own_check_passed(slurm, tmp_path):
    assert {file.stem for file in (ROOT / "slurm").glob("*.sbatch")} == {*SCRIPTS, "srun", "resume"}
    program = tmp_path / "apptainer"
    program.write_text(APPTAINER)
    program.chmod(0o755)
    path = f"PATH={tmp_path}:{slurm.environment()['PATH']}"
    options = "--export=ALL", f"--output={tmp_path}/%x-%A_%a"
    jobs = {name: submit(slurm, *options, alone(name, tmp_path), environ=(path,)) for name in SCRIPTS}
    for name, job in jobs.items():
        reached = wait(slurm, job)
        outputs = [file.read_text() for file in sorted(tmp_path.glob(f"mpishare-{name}-*"))]
        assert reached == ["COMPLETED"] * SCRIPTS[name], outputs
        assert len(outputs) == SCRIPTS[name]
        for output in outputs:
            assert_checked(name, output)
            assert "rror" not in output
    assert_nothing_left(slurm)


def alone(name, folder):
    """A copy of a script in a folder where nothing of slurm/ is beside it."""
    return shutil.copy(ROOT / "slurm" / f"{name}.sbatch", folder)


def assert_checked(name, output):
    """The job says that its own check has passed."""
    if name in RANKS:
        assert f"all {RANKS[name]} ranks agree bit for bit" in output
        assert output.count("bytes held once") == RANKS[name] // 2
    else:
        assert output.splitlines()[-1] == CHECKED[name]
        assert output.count("bytes are right on 4 of 4 ranks") == (5 if name == "acceptance" else 0)


def test_a_job_that_is_signalled_to_stop_is_requeued_and_goes_on(slurm, tmp_path):
    heat = {"ROWS": "61", "COLUMNS": "50", "STEPS": "3000", "FOLDER": f"{tmp_path}/run"}
    environ = tuple(f"HEAT_{name}={value}" for name, value in heat.items())
    output = tmp_path / "out"
    options = ["--export=ALL", f"--output={output}", alone("resume", tmp_path)]
    job = submit(slurm, *options, environ=environ)
    wait_for("step ", output)
    slurm.exec(HEAD, ["scancel", "--signal=USR1", job])  # as Slurm does before the time is up
    reached, text = wait(slurm, job), output.read_text()
    assert reached == ["COMPLETED"], text
    assert text.count("requeued") == 1
    first, step = (int(number) for number in re.findall(r"first (\d+), step (\d+)", text)[-1])
    assert 0 < first < step == 3000
    assert_nothing_left(slurm)


@pytest.mark.parametrize(("mpi", "pmi"), [("mpich", "pmi2"), ("intel", "pmi2"), ("system-openmpi", "pmix")])
def test_srun_starts_ranks_of_other_mpis(slurm, mpi, pmi):
    """On two hosts. No mpiexec tells them where their library is.

    MPICH 4.0 of Debian is left out: it may hang in MPI_Finalize (pmodels/mpich#6596), with mpi4py alone as well.
    """
    python = other_python(mpi)
    settings = ["env", f"LD_LIBRARY_PATH={Path(python).parent.parent}/lib", "OMPI_MCA_btl=^ofi"]
    srun = ["srun", f"--mpi={pmi}", "--nodes=2", "--ntasks=4", python, "-m", "mpi4py", "jobs/broadcast.py"]
    job = slurm.exec(HEAD, [*settings, *srun])
    assert "all 4 ranks agree bit for bit" in job.stdout
    assert job.stdout.count("bytes held once") == 2
    assert_nothing_left(slurm)


def test_scancel_leaves_nothing(slurm, tmp_path):
    wrap = f"exec srun --mpi=pmix {PYTHON} -m tests.faults.programs.signalled 9 SIGKILL never"
    job = submit(slurm, "--nodes=3", "--ntasks-per-node=2", f"--output={tmp_path}/out", f"--wrap={wrap}")
    assert wait(slurm, job, ("RUNNING",)) == ["RUNNING"]
    wait_for("sharing again", tmp_path / "out")
    slurm.exec(HEAD, ["scancel", job])
    assert wait(slurm, job) == ["CANCELLED"]
    assert_nothing_left(slurm)


def assert_nothing_left(slurm):
    """Slurm says that a job has ended before its processes have; then nothing of it may remain."""
    for host in slurm.spec.hosts:
        wait_until(lambda: all(line.startswith("slurmd ") for line in slurm.processes(host)), 300)  # noqa: B023
        assert [file for file in slurm.shared_files(host) if "osc_sm" in file or "mpishare" in file] == []


def test_tasks_that_mpi_sees_alone_are_refused(slurm):
    srun = ["srun", "--ntasks=6", "--mpi=none"]
    sentence = "6 processes were started together, but MPI sees each of them alone"
    info = slurm.exec(HEAD, [*srun, "mpishare", "info"], status="failure")
    assert info.stderr.count(sentence) == 1
    code = "import mpishare as ms; ms.zeros(3)"
    first = slurm.exec(HEAD, [*srun, sys.executable, "-c", code], status="failure")
    assert first.stderr.count(f"LaunchError: {sentence}") == 6
    code = "import mpishare as ms; print(ms.zeros(3).sum())"
    alone = slurm.exec(HEAD, [*srun, "env", "MPISHARE_SINGLETONS=1", sys.executable, "-c", code])
    assert alone.stdout == "0.0\n" * 6
