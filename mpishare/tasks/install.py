"""A function, or any object, brought to all ranks: its arrays once per node, the rest of it on each rank."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from mpishare.arrays.raw import bytes_of
from mpishare.comm.context import Context
from mpishare.objects.pickling import pickle_object
from mpishare.sharing import share


def installed(context: Context, obj: Any, root: int) -> Any:
    """The root's `obj` on every rank; on the root itself the same object.

    Raises:
        SpecError: It cannot be pickled.
        PeerError: The same on the root, or another rank could not make it again.

    Collective:
        Over the communicator.
    """
    is_root = context.topology.rank == root
    (found,) = share((obj,) if is_root else None, root=root, comm=context.topology.comm)  # None alone cannot be shared
    return obj if is_root else found


def digest_of(obj: Any) -> bytes:
    """Differs where `obj` does, or what it holds.

    Raises:
        SpecError: It cannot be pickled.
    """
    parcel = pickle_object(obj)
    digest = blake2b(parcel.skeleton)
    for array in parcel.arrays:
        digest.update(f"{array.dtype} {array.shape} {array.strides}".encode())
        digest.update(bytes_of(array).data if array.flags.forc else array.tobytes())
    return digest.digest()
