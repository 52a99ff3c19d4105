"""`mpishare plan`: the memory of data on a node, and the lines for Slurm; without MPI where the node is given."""

import json

import h5py
import numpy as np
import pytest

from mpishare.cli import main as command
from mpishare.cli.plan import main, make_plan

GIB = 1 << 30


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "run.h5", "w") as new:
        new["grid"] = np.zeros((1 << 10, 1 << 10))
        new.create_dataset("deep/packed", (1000, 3), "f4", chunks=(100, 3), compression="gzip")
    return tmp_path / "run.h5"


def test_the_fullest_node_counts():
    plan = make_plan(data=10 * GIB, ranks=66, nodes=4, each=GIB, memory=64 * GIB, limit=32 * GIB, shm=0)
    assert (plan.ranks_a_node, plan.shared, plan.copied) == (17, 27 * GIB, 187 * GIB)
    assert plan.fits
    assert plan.shared_from_root == 37 * GIB
    assert plan.sbatch == ["#SBATCH --nodes=4", "#SBATCH --ntasks=66", "#SBATCH --mem=27648M"]


def test_a_limit_of_control_groups_counts():
    assert not make_plan(data=10 * GIB, ranks=2, nodes=1, each=GIB, memory=64 * GIB, limit=11 * GIB, shm=0).fits


def plan_of(capsys, *args):
    """The exit status and the output."""
    status = main([*args, "--memory", "1G"])
    return status, capsys.readouterr().out


def test_one_dataset(file, capsys):
    status, output = plan_of(capsys, f"{file}:grid", "-n", "8", "-N", "2", "--each", "128M")
    assert status == 0
    assert "/grid: (1024, 1024) float64, 8,388,608 bytes, contiguous" in output
    lines = {line.split("  ")[1]: line.split()[-2:] for line in output.splitlines() if line.startswith("  one copy")}
    each = 128 << 20
    assert lines["one copy, shared"] == [f"{1 << 23:,}", f"{(1 << 23) + 4 * each:,}"]
    assert "as the root has a copy of its own, --mem=768M:" in output
    assert lines["one copy per rank"] == [f"{4 << 23:,}", f"{4 * ((1 << 23) + each):,}"]
    assert output.endswith("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --mem=768M\n")


def test_a_whole_file_that_does_not_fit(file, capsys):
    args = [str(file), "-n", "4", "-N", "1"]  # 4 ranks of 256 MiB fill 1 GiB
    assert "one copy does not fit, but with 3 ranks per node" in plan_of(capsys, *args)[1]
    status, output = plan_of(capsys, *args, "--json")
    result = json.loads(output)
    assert [array["name"] for array in result["arrays"]] == ["/deep/packed", "/grid"]
    assert (status, result["fits"], result["data"]) == (1, False, (8 << 20) + 12000)


def test_a_colon_in_a_name(tmp_path, capsys):
    np.save(tmp_path / "a:b.npy", np.zeros(3))
    with h5py.File(tmp_path / "a:b.h5", "w") as new:
        new["x:y"] = np.zeros(3)
    for name in ("a:b.npy", "a:b.h5:x:y"):
        assert plan_of(capsys, str(tmp_path / name), "-n", "1", "-N", "1")[0] == 0


def test_a_member_that_cannot_be_loaded(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as new:
        new["a"], new["empty"] = np.zeros(3), h5py.Empty("f4")
    args, reason = [str(tmp_path / "a.h5"), "-n", "1", "-N", "1"], "it is an HDF5 null dataspace"
    assert f"/empty: () |V0, 0 bytes, contiguous; left out: {reason}" in plan_of(capsys, *args)[1]
    result = json.loads(plan_of(capsys, *args, "--json")[1])
    assert (result["data"], [array["reason"][: len(reason)] for array in result["arrays"]]) == (24, ["", reason])


def test_names_of_one_dataset_and_links(tmp_path, capsys):
    """The bytes count once; a link that leads nowhere is listed."""
    with h5py.File(tmp_path / "b.h5", "w") as new:
        new["far"] = np.zeros(5)
    with h5py.File(tmp_path / "a.h5", "w") as new:
        new["a"] = np.zeros(3)
        new["again"], new["soft"], new["gone"] = new["a"], h5py.SoftLink("/a"), h5py.SoftLink("/b")
        new["far"] = h5py.ExternalLink("b.h5", "far")
    args = [str(tmp_path / "a.h5"), "-n", "1", "-N", "1"]
    output = plan_of(capsys, *args)[1]
    assert "/a: (3,) float64, 24 bytes, contiguous; also /again; also /soft\n" in output
    assert f"/far: (5,) float64, 40 bytes, contiguous in {tmp_path}/b.h5\n" in output
    assert "/gone: () |V0, 0 bytes, link; left out: it leads to '/b': " in output
    result = json.loads(plan_of(capsys, *args, "--json")[1])
    assert (result["data"], result["arrays"][0]["names"]) == (64, ["/a", "/again", "/soft"])


@pytest.mark.parametrize("name", ["missing.h5", "run.h5:nothing", f"{'x' * 300}.h5:grid"])
def test_missing_files_and_datasets(file, name, capsys):
    assert command(["plan", str(file.parent / name), "-n", "1", "-N", "1", "--memory", "1G"]) == 2
    assert capsys.readouterr().err.startswith("mpishare plan: ")


def test_impossible_jobs(file):
    for options in ("-n 1 -N 2", "-n 0 -N 0", "-n 2 -N 1 --each 0", "-n 1 -N 1 --memory 1P", "-n 1 -N 1 --shm -1G"):
        with pytest.raises(SystemExit):
            main([str(file), *options.split()])
