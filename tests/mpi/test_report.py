"""report and info: what is shared, and on what ground."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.memory.hugepages import huge_areas, huge_bytes
from mpishare.memory.selection import KINDS

pytestmark = pytest.mark.mpi


def test_report_counts_live_segments() -> None:
    here = ms.topology()
    before = ms.report()
    large, small = ms.zeros(100_000), ms.share(np.arange(10))
    report = ms.report()
    assert report.bytes_shared - before.bytes_shared == 800_080
    assert report.bytes_saved - before.bytes_saved == 800_080 * (here.node_size - 1)
    assert (report.segments[0].made_by, report.segments[0].nbytes) == ("zeros", large.nbytes)
    assert report.segments[0].backend in {kind.title for kind in KINDS}
    assert "800,000 bytes" in str(report)
    assert small.nbytes == 80
    del large, small
    assert ms.report().bytes_shared == before.bytes_shared


def test_info_is_the_same_on_all_ranks(comm: MPI.Intracomm) -> None:
    info = ms.info()
    texts = comm.allgather(json.dumps(info.as_dict()))
    assert len(set(texts)) == 1
    here = ms.topology()
    assert [node.ranks for node in info.nodes] == [here.ranks_of(node) for node in range(here.n_nodes)]
    assert info.versions["MPI library"] in MPI.Get_library_version()
    assert list(info.nodes[0].segments) == [kind.title for kind in KINDS]
    assert info.nodes[0].segments["private"].startswith("fits")
    assert "segment private" in str(info)


def test_the_page_size_is_that_of_the_maps() -> None:
    large, small = ms.zeros(32 << 20, "u1"), ms.zeros(1000)
    pages = {one.nbytes: one.page_bytes for one in ms.report().segments}
    assert pages[small.nbytes] == os.sysconf("SC_PAGE_SIZE")
    areas = huge_areas()
    is_huge = any(large.ctypes.data + large.nbytes // 2 in area for area in areas)
    assert pages[large.nbytes] == (huge_bytes() if is_huge else pages[small.nbytes])
