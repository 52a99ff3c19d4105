"""The NUMA node of this process, on hosts whose sysfs the test writes."""

import os
from pathlib import Path

import pytest

from mpishare.host.numa import numa_node

LAYOUTS = {
    "one node": (["0-127"], {5}, 0),
    "all CPUs of one": (["0-3,8-11", "4-7,12-15"], {4, 5, 6, 7, 12, 13, 14, 15}, 1),
    "one CPU behind a gap": (["0-3,8,10-11", "4-7,9"], {10}, 0),
    "CPUs of two": (["0-3", "4-7"], {3, 4}, None),
    "a CPU of none": (["0-3"], {4}, None),
    "nodes with memory alone": (["", "0-3", ""], {2}, 1),
    "a kernel without NUMA": ([], {0}, None),
}


@pytest.mark.parametrize(("lists", "cpus", "node"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_node_whose_cpus_alone_the_process_may_use(lists, cpus, node, tmp_path, monkeypatch):
    (tmp_path / "node").touch()
    for number, text in enumerate(lists):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus)
    assert numa_node(str(tmp_path)) == node


def test_a_process_on_one_cpu_of_this_host_has_a_node_if_the_host_has():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert (numa_node() is not None) == Path("/sys/devices/system/node/node0").exists()
    finally:
        os.sched_setaffinity(0, before)
    assert numa_node("/no/such/folder") is None
