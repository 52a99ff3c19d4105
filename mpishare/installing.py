"""A function, or any object, brought to all ranks: its arrays once per node, the rest of it on each rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpishare.agreement import agree
from mpishare.letters import Parcel
from mpishare.objects import put_together, take_apart
from mpishare.sharing import share
from mpishare.topology import Topology

__all__ = ["installed"]


def installed(here: Topology, obj: Any, root: int) -> Any:
    """The root's `obj` on every rank; on the root itself the same object.

    Raises:
        SpecError: It cannot be pickled.
        PeerError: The same on the root, or another rank could not make it again.

    Collective:
        Over `here.comm`.
    """
    is_root = here.rank == root
    with agree(here.channel):
        parcel = take_apart(obj) if is_root else Parcel(b"", (), ())
    lengths = here.channel.bcast((len(parcel.arrays), len(parcel.buffers)), root)
    skeleton = share(np.frombuffer(parcel.skeleton, np.uint8) if is_root else None, root=root, comm=here.comm)
    own = [*parcel.arrays, *parcel.buffers] if is_root else [None] * sum(lengths)
    arrays = [share(array, root=root, comm=here.comm) for array in own]
    with agree(here.channel):
        if not is_root:
            obj = put_together(Parcel(skeleton.tobytes(), arrays[: lengths[0]], arrays[lengths[0] :]))
    return obj
