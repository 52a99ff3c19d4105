"""`mpishare plan`: the memory of data on a node, and the lines for Slurm; without MPI where the node is given."""

import json
import os

import h5py
import numpy as np
import pytest

from mpishare.cli import main as command
from mpishare.cli.plan import main


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "run.h5", "w") as new:
        new["grid"] = np.zeros((1 << 10, 1 << 10))
        new.create_dataset("deep/packed", (1000, 3), "f4", chunks=(100, 3), compression="gzip")
    return tmp_path / "run.h5"


def plan_of(capsys, *args, memory="1G"):
    """The exit status and the output."""
    status = main([*args, "--memory", memory])
    return status, capsys.readouterr().out


def test_the_fullest_node_counts(file, capsys):
    status, output = plan_of(capsys, f"{file}:grid", "-n", "7", "-N", "2", "--each", "128M")
    assert status == 0
    assert "/grid: (1024, 1024) float64, 8 MiB, contiguous" in output
    for title, copies in (("one copy", 1), ("one copy, and the root's", 2), ("one copy per rank", 4)):
        assert [title, f"{copies * 8} MiB {copies * 8 + 512} MiB", "fits"] in table_of(output)
    assert output.endswith("needs --mem=768M:\n#SBATCH --nodes=2\n#SBATCH --ntasks=7\n#SBATCH --mem=768M\n")


def test_a_part_of_this_host_is_left_to_the_system(capsys):
    """The memory that Slurm calls RealMemory is less than all of it, too."""
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    main(["1M", "-n", "1", "-N", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["memory"] <= 0.95 * host_bytes


def table_of(output):
    """The columns of each line: the title, the numbers, the verdict."""
    lines = [line for line in output.splitlines() if line.startswith("  one")]
    return [[line[2:26].rstrip(), " ".join(line[26:53].split()), line[53:].strip()] for line in lines]


def test_a_whole_file_that_does_not_fit(file, capsys):
    """Such a node has no lines for Slurm."""
    status, output = plan_of(capsys, str(file), "-n", "4", "-N", "1")  # 4 ranks of 256 MiB fill 1 GiB
    assert (status, "#SBATCH" in output) == (1, False)
    assert [row[2] for row in table_of(output)] == ["does not fit; 3 ranks a node would"] * 3
    assert table_of(plan_of(capsys, str(file), "-n", "4", "-N", "1", memory="1M")[1])[0][2].endswith("with any rank")


def test_json_for_a_node_with_little_shared_memory(file, capsys):
    arguments = [f"{file}:deep", "-n", "4", "-N", "2", "--shm", "20K"]
    assert "/dev/shm of 20 KiB: MPI's windows may not all fit" in plan_of(capsys, *arguments)[1]
    plan = json.loads(plan_of(capsys, *arguments, "--json")[1])
    assert (plan["data"], plan["shm"], plan["memory"], plan["fits"]) == (12_000, 20 << 10, 1 << 30, True)
    assert plan["arrays"][0]["names"] == ["/deep/packed"]
    assert plan["arrays"][0]["chunks"] == [100, 3]


def test_sizes_and_several_files_add_up(file, tmp_path, monkeypatch, capsys):
    """Equal arrays of two files are two. A file that is called like a size is that file."""
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "a.npy", np.zeros(1 << 20))
    np.save(tmp_path / "b.npy", np.zeros(1 << 20))
    for data, mib in ((["8M"], 8), (["a.npy", "b.npy", "1.5M", f"{file}:grid"], 8 + 8 + 1.5 + 8)):
        status, output = plan_of(capsys, *data, "-n", "2", "-N", "2", "--json")
        plan = json.loads(output)
        assert (status, plan["data"], plan["file"]) == (0, mib * (1 << 20), data)
        files = [each.partition(":")[0] for each in data if "M" not in each]
        assert [array["file"] for array in plan["arrays"]] == files
    (tmp_path / "b.npy").rename(tmp_path / "8M")
    assert "8M: (1048576,) float64, 8 MiB, npy\n" in plan_of(capsys, "8M", "-n", "1", "-N", "1")[1]


def test_names_of_one_dataset_links_and_what_cannot_be_loaded(tmp_path, capsys):
    """The bytes of a dataset count once, whatever its names are."""
    with h5py.File(tmp_path / "b.h5", "w") as new:
        new["far"] = np.zeros(5)
    with h5py.File(tmp_path / "a.h5", "w") as new:
        new["a"], new["empty"] = np.zeros(3), h5py.Empty("f4")
        new["again"], new["soft"], new["gone"] = new["a"], h5py.SoftLink("/a"), h5py.SoftLink("/b")
        new["far"] = h5py.ExternalLink("b.h5", "far")
    output = plan_of(capsys, str(tmp_path / "a.h5"), "-n", "1", "-N", "1")[1]
    assert "/a: (3,) float64, 24 bytes, contiguous; also /again; also /soft\n" in output
    assert f"/far: (5,) float64, 40 bytes, contiguous in {tmp_path}/b.h5\n" in output
    assert "/gone: () |V0, 0 bytes, link; left out: it leads to '/b': " in output
    assert "/empty: () |V0, 0 bytes, contiguous; left out: it is an HDF5 null dataspace" in output
    assert table_of(output)[0][1].startswith("64 bytes ")


@pytest.mark.parametrize("name", ["missing.h5", "run.h5:nothing", f"{'x' * 300}.h5:grid"])
def test_missing_files_and_datasets(file, name, capsys):
    assert command(["plan", str(file.parent / name), "-n", "1", "-N", "1", "--memory", "1G"]) == 2
    assert capsys.readouterr().err.startswith("mpishare plan: ")
