"""info: the facts about every node; report: the live segments and their sizes."""

import json
import os

import numpy as np
from mpi4py import MPI

import mpishare as ms
from mpishare.memory.hugepages import huge_areas, huge_bytes
from mpishare.memory.selection import KINDS


def test_info_is_the_same_on_all_ranks(comm):
    info, nodes = ms.info(), ms.topology()
    assert len(set(comm.allgather(json.dumps(info.as_dict())))) == 1
    assert [node.ranks for node in info.nodes] == [nodes.ranks_of(node) for node in range(nodes.n_nodes)]
    assert info.versions["MPI library"] in MPI.Get_library_version()
    assert list(info.nodes[0].segments) == [kind.title for kind in KINDS]
    assert info.nodes[0].segments["private"].startswith("fits")
    assert "segment private" in str(info)


def test_report_counts_live_segments():
    before = ms.report()
    large, small = ms.zeros(4_000_000), ms.share(np.arange(10))
    report = ms.report()
    assert report.bytes_shared - before.bytes_shared == 32_000_080
    assert report.bytes_saved - before.bytes_saved == 32_000_080 * (ms.topology().node_size - 1)
    assert (report.segments[0].made_by, report.segments[0].nbytes) == ("zeros", large.nbytes)
    assert report.segments[0].backend in {kind.title for kind in KINDS}
    assert "32,000,000 bytes" in str(report)
    pages = {segment.nbytes: segment.page_bytes for segment in report.segments}
    assert pages[small.nbytes] == os.sysconf("SC_PAGE_SIZE")
    is_huge = any(large.ctypes.data + large.nbytes // 2 in area for area in huge_areas())
    assert pages[large.nbytes] == (huge_bytes() if is_huge else pages[small.nbytes])
    del large, small
    assert ms.report().bytes_shared == before.bytes_shared
