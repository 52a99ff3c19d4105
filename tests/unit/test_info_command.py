"""`mpishare info`: the settings that it adds, and its warning where Slurm counts shared memory once per rank."""

import pytest

from mpishare.cli.info import accounting_warning, additions

WITHOUT_FILE = {"OMPI_MCA_btl": "^sm,vader"}
ADDED: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, WITHOUT_FILE),
    ({"OMPI_MCA_btl": ""}, WITHOUT_FILE),
    ({"OMPI_MCA_btl": "^ofi"}, {"OMPI_MCA_btl": "^ofi,sm,vader"}),
    ({"OMPI_MCA_btl": "self,sm"}, {}),
    ({"PMIX_RANK": "0"}, {}),
    ({"PMI_RANK": "0", "OMPI_MCA_btl": "^ofi"}, {}),
]


@pytest.mark.parametrize(("environ", "added"), ADDED)
def test_only_where_no_launcher_removes_files(environ, added):
    assert additions(environ) == added


JOB = {"SLURM_JOB_ID": "1"}
ACCOUNTING = [
    ("jobacct_gather/linux", "(null)", True),
    ("jobacct_gather/linux", "OverMemoryKill", True),
    ("jobacct_gather/linux", "overmemorykill,usePSS", False),
    ("jobacct_gather/linux", "NoShared,OverMemoryKill", False),
    ("jobacct_gather/cgroup", "OverMemoryKill", False),
]


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


@pytest.mark.parametrize(("kind", "params", "is_warned_of"), ACCOUNTING)
def test_the_warning_follows_the_configuration(scontrol, kind, params, is_warned_of):
    scontrol(printing(kind, params))
    assert ("once per rank" in str(accounting_warning(JOB, limit_s=60))) == is_warned_of
    assert accounting_warning({}) is None, "outside of a job"


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "printf '\\377'", "exec sleep 60"])
def test_an_scontrol_that_does_not_answer_is_no_warning(scontrol, script):
    scontrol(script)
    assert accounting_warning(JOB, limit_s=0.2) is None
