"""info: the same facts on all ranks."""

import json

from mpi4py import MPI

import mpishare as ms
from mpishare.memory.selection import KINDS


def test_info_is_the_same_on_all_ranks(comm):
    info, nodes = ms.info(), ms.topology()
    assert len(set(comm.allgather(json.dumps(info.as_dict())))) == 1
    assert [node.ranks for node in info.nodes] == [nodes.ranks_of(node) for node in range(nodes.n_nodes)]
    assert info.versions["MPI library"] in MPI.Get_library_version()
    assert list(info.nodes[0].segments) == [kind.title for kind in KINDS]
    assert info.nodes[0].segments["private"].startswith("fits")
    assert "segment private" in str(info)
