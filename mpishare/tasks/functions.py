"""Whether the other ranks have a function already, with the state that it has now."""

from __future__ import annotations

from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from mpishare.arrays.raw import bytes_of
from mpishare.objects.pickling import pickle_object


class SharedFunction:
    """The function that all ranks have now.

    Attributes:
        func: The function; None until it is shared.
    """

    def __init__(self) -> None:
        self.func: Any = None
        self._digest = b""

    def is_current(self, func: Any) -> bool:
        """On the root: whether the other ranks have `func` with the state that it has now.

        From the second call on, it pickles the state of `func` and compares digests.

        Raises:
            SpecError: `func` cannot be pickled.
        """
        if self.func is None:
            return False
        if is_named(func):
            return func is self.func
        pickled = pickle_object(func)
        digest = blake2b(pickled.skeleton)
        for array in pickled.arrays:
            digest.update(f"{array.dtype} {array.shape} {array.strides}".encode())
            digest.update(bytes_of(array).data if array.flags.forc else array.tobytes())
        before, self._digest = self._digest, digest.digest()
        return before == self._digest


def is_named(func: Any) -> bool:
    """Whether pickle refers to `func` by name, so that it has no state."""
    if isinstance(func, BuiltinFunctionType):
        return func.__self__ is None or isinstance(func.__self__, ModuleType)
    return isinstance(func, FunctionType) and func.__closure__ is None and "<" not in func.__qualname__
