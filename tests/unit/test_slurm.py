"""`mpishare info` in a job of Slurm: the warning where shared memory counts once per rank."""

import pytest

from mpishare.cli.info import accounting_warning

LINUX, CGROUP = "jobacct_gather/linux", "jobacct_gather/cgroup"
JOB = {"SLURM_JOB_ID": "1"}


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Makes a shell script the only scontrol on PATH."""

    def make(script):
        program = tmp_path / "scontrol"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return make


def printing(kind, params):
    """A script that prints a configuration as Slurm 22.05 does."""
    lines = f"JobAcctGatherFrequency  = 30\nJobAcctGatherType       = {kind}\nJobAcctGatherParams     = {params}"
    return f"[ \"$*\" = 'show config' ] || exit 1\necho 'Configuration data as of 2026-11-22T20:34:07\n{lines}'"


@pytest.mark.parametrize(
    ("kind", "params", "is_warned_of"),
    [
        (LINUX, "(null)", True),
        (LINUX, "OverMemoryKill", True),
        (LINUX, "overmemorykill,usePSS", False),
        (LINUX, "NoShared,OverMemoryKill", False),
        (CGROUP, "OverMemoryKill", False),
    ],
)
def test_the_warning_follows_the_configuration(scontrol, kind, params, is_warned_of):
    scontrol(printing(kind, params))
    assert ("once per rank" in str(accounting_warning(JOB, limit_s=60))) == is_warned_of
    assert accounting_warning({}) is None, "outside of a job"


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "printf '\\377'", "exec sleep 60"])
def test_an_scontrol_that_does_not_answer_is_no_warning(scontrol, script):
    scontrol(script)
    assert accounting_warning(JOB, limit_s=0.2) is None
