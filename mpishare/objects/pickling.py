"""Pickles objects apart from their arrays (PEP 574), and unpickles them.

The skeleton is a pickle in which an empty buffer stands for each array. A buffer that a class exports by itself is an
array of bytes. Arrays of Python objects stay in the skeleton.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import check_dtype
from mpishare.arrays.slices import LINE_BYTES, PAGE_BYTES, round_up
from mpishare.arrays.spec import PLAIN_CLASSES, Spec
from mpishare.errors import MpishareError, SpecError, text_of_error
from mpishare.objects.libraries import reducers
from mpishare.objects.subclasses import parts_of, reduce_subclass
from mpishare.objects.unshared import LARGE_BYTES, Copied, UnsharedParts, part_of_pickle

_CURE = "Leave that part out, for example by __getstate__, or pass plain arrays of its parts."
_CURE_FUNCTION = "Lambdas and local classes need cloudpickle: pip install cloudpickle."
_CURE_NAME = "Define it at the top level of the script or module, on all ranks."
_CURE_READ_ONLY = (
    "Its class stores into an array when it is unpickled, and shared arrays are read-only: have it copy that array."
)


Inside: TypeAlias = "dict[int, tuple[int, int]]"
"""For the number of an array whose bytes are bytes of another one, the number of that one and where it begins there."""


class PickledObject(NamedTuple):
    """An object that was pickled out of band (PEP 574).

    Attributes:
        skeleton: The pickle without the bytes of arrays.
        arrays: The arrays, in any layout, in the order in which the skeleton names them.
    """

    skeleton: bytes | memoryview
    arrays: Sequence[NDArray[Any]]


def pack_contents(specs: Sequence[Spec], inside: Inside) -> bytes:
    """The contents of an object with arrays of these specs, as bytes."""
    return pickle.dumps(([spec.packed for spec in specs], inside), protocol=5)


def unpack_contents(contents: bytes | memoryview) -> tuple[list[Spec], Inside]:
    """The specs, and which arrays are inside of others, that `pack_contents` packed.

    Raises:
        SpecError: The bytes are not such contents.
    """
    try:
        packed, inside = pickle.loads(contents)  # noqa: S301 - from a rank of this job
        return [Spec.unpack(header, extension) for header, extension in packed], inside
    except Exception as error:  # damaged bytes may raise anything
        raise SpecError(f"a message from another rank cannot be read: {text_of_error(error)}") from error


def lay_out(text_bytes: int, specs: Sequence[Spec], inside: Inside, large_bytes: int) -> tuple[list[int], int, int]:
    """Lays out the contents and the skeleton, `text_bytes` in all, then the small arrays, then those of `large_bytes`.

    Those inside of others take no bytes.

    Returns:
        Where each array begins in the segment, the bytes of the prefix, and the bytes of the segment.
    """
    offsets, end = [0] * len(specs), text_bytes
    own = [(number, spec) for number, spec in enumerate(specs) if number not in inside]
    for number, spec in own:
        if spec.nbytes < large_bytes:
            offsets[number] = round_up(end, LINE_BYTES)
            end = offsets[number] + spec.nbytes
    prefix_bytes = end = round_up(end, LINE_BYTES)
    for number, spec in own:
        if spec.nbytes >= large_bytes:
            offsets[number] = round_up(end, PAGE_BYTES)
            end = offsets[number] + spec.nbytes
    for number, (outer, start) in inside.items():
        offsets[number] = offsets[outer] + start
    return offsets, prefix_bytes, end


def check_length(length: int, expected: int) -> None:
    """Refuses bytes from another rank that are too short or too long.

    Raises:
        SpecError: `length` is not `expected`.
    """
    if length != expected:
        raise SpecError(f"a message from another rank cannot be read: it has {length:,} bytes, not {expected:,}")


def pickle_object(
    obj: object, unshared: UnsharedParts | None = None, reduce: Callable[[Any], Any] | None = None
) -> PickledObject:
    """Pickles `obj` apart from its arrays, which are not copied.

    cloudpickle, if it is installed, pickles what pickle refuses: lambdas, and functions and classes that cannot be
    imported by their name.

    Args:
        obj: Any object that can be pickled.
        unshared: Notes the parts that are not bytes of arrays.
        reduce: How to pickle a part for which nothing else is known, as `reducer_override` of pickle says it.

    Raises:
        SpecError: A part of it cannot be pickled.

    Source:
        PEP 574, "Pickle protocol 5 with out-of-band data".
    """
    with suppress(Exception):  # the second attempt raises it again
        return _pickled_by(_Pickler, obj, unshared, reduce)
    cloud_pickler = _cloud_pickler()
    try:
        return _pickled_by(cloud_pickler or _Pickler, obj, unshared, reduce)
    except MpishareError:
        raise
    except Exception as error:  # user classes may raise anything
        parts = (obj.func, *obj.args) if isinstance(obj, partial) else obj if type(obj) is tuple else ()
        for part in () if isinstance(error, RecursionError) else parts:  # names the part, not a tuple of ours
            pickle_object(part)
        name = getattr(obj, "__qualname__", type(obj).__name__)
        is_of_pickle = isinstance(error, pickle.PicklingError | TypeError | AttributeError)
        text = str(error) if is_of_pickle else text_of_error(error)
        needs_cloudpickle = cloud_pickler is None and is_of_pickle and not isinstance(error, TypeError)
        raise SpecError(
            f"{name} cannot be pickled: {text}. {_CURE_FUNCTION if needs_cloudpickle else _CURE}"
        ) from error


def _pickled_by(
    pickler_class: type[_Pickler],
    obj: object,
    unshared: UnsharedParts | None,
    reduce: Callable[[Any], Any] | None,
) -> PickledObject:
    if unshared is not None:
        unshared.clear()
    file = BytesIO()
    pickler = pickler_class(file, unshared, reduce)
    pickler.dump(obj)
    skeleton = file.getvalue()
    if unshared is not None and (rest := len(skeleton) - sum(part.nbytes for part in unshared.parts)) > LARGE_BYTES:
        unshared.add(part_of_pickle(obj, rest))
    return PickledObject(skeleton, pickler.arrays())


def unpickle_object(pickled: PickledObject) -> Any:
    """The object, with the arrays of `pickled` in it; no copy.

    Raises:
        SpecError: A class or function of it is not defined on this rank, or its class raises when it is unpickled.
    """
    try:
        return pickle.loads(pickled.skeleton, buffers=pickled.arrays)  # noqa: S301 - from a rank of this job
    except MpishareError:
        raise
    except Exception as error:  # user classes may raise anything
        text = text_of_error(error)
        raise SpecError(f"an object cannot be unpickled on this rank: {text}. {_cure_of(error, text)}") from error


def _cure_of(error: Exception, text: str) -> str:
    if isinstance(error, ImportError):
        return "Install the module for all ranks."
    if isinstance(error, AttributeError) and ("module '__main__'" in text or "Can't get attribute" in text):
        return _CURE_NAME  # of Python 3.14, and of older ones
    return _CURE_READ_ONLY if "read-only" in text else "Its class raised the error above; pass its parts instead."


class _Pickler(pickle.Pickler):
    """Puts a buffer in the place of each array."""

    def __init__(
        self, file: BytesIO, unshared: UnsharedParts | None, reduce: Callable[[Any], Any] | None = None
    ) -> None:
        self._buffers: list[pickle.PickleBuffer] = []
        self._arrays: dict[int, NDArray[Any]] = {}  # by the id of the buffer in their place
        self._copied: dict[int, Any] = {}  # what copied objects give to pickle, by id
        self._unshared = unshared
        self._reducers = reducers()
        self._reduce = reduce
        super().__init__(file, protocol=5, buffer_callback=self._buffers.append)

    def arrays(self) -> list[NDArray[Any]]:
        """The arrays, each once, and the buffers that other classes exported."""
        return [
            self._arrays[id(b)] if id(b) in self._arrays else np.frombuffer(b.raw(), np.uint8) for b in self._buffers
        ]

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle `obj`, if not in its own way. Not called for numbers, strings and containers."""
        reduced: Any = NotImplemented
        for kind, reduce in self._reducers:
            if isinstance(obj, kind):
                reduced = reduce(obj)
        if reduced is NotImplemented and isinstance(obj, np.ndarray):
            reduced = self._reduced_array(obj)
        elif reduced is NotImplemented and self._reduce is not None:
            reduced = self._reduce(obj)
        if isinstance(reduced, Copied):
            if self._unshared is not None:
                self._unshared.add(reduced.part)
            reduced = reduced.reduced
            self._copied.update((id(part), part) for part in parts_of(reduced))
        if reduced is NotImplemented and self._unshared is not None:
            with suppress(Exception):  # what an object costs does not decide whether it can be shared
                self._unshared.note(obj)
        return reduced

    def _reduced_array(self, obj: Any) -> Any:
        if id(obj) in self._copied:
            return obj.__reduce__()
        if type(obj) in PLAIN_CLASSES:
            return NotImplemented if obj.dtype.hasobject else self._reduced_plain(obj)
        return NotImplemented if obj is np.ma.masked else reduce_subclass(obj)

    def _reduced_plain(self, obj: NDArray[Any]) -> tuple[Any, ...]:
        try:
            check_dtype(obj.dtype)
        except SpecError:  # a dtype of another library, which can be pickled
            return np.ndarray.view, (obj.view(np.dtype((np.void, obj.itemsize))), obj.dtype)
        buffer = pickle.PickleBuffer(bytearray())
        self._arrays[id(buffer)] = obj
        return np.asanyarray, (buffer,)  # which is the array that is received


@cache
def _cloud_pickler() -> type[_Pickler] | None:
    try:
        import cloudpickle
    except ImportError:
        return None

    class CloudPickler(_Pickler, cloudpickle.Pickler):  # type: ignore[misc]
        """Pickles functions and classes by their definition if they cannot be imported."""

        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            return cloudpickle.Pickler.reducer_override(self, obj) if reduced is NotImplemented else reduced

    return CloudPickler
