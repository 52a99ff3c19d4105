"""Arrays in a file as they lie there: mapped, not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.comm.context import Context
from mpishare.errors import FileError
from mpishare.files.contiguous_part import Flat
from mpishare.files.errors import file_errors
from mpishare.files.inspect import Part
from mpishare.files.source import Source
from mpishare.memory.mapping import Mapping
from mpishare.memory.segment import Origin, Segment


def check_flat(path: str, parts: Sequence[Part]) -> None:
    """Returns when all arrays can be mapped.

    Raises:
        FileError: One of them does not lie in the file as it would in memory.
    """
    for part in parts:
        if not isinstance(part, Flat):
            reason = "cannot be mapped: it is chunked, compressed, converted or elsewhere. Load it without map=True."
            raise FileError(path, part.name, reason)


def mapped(context: Context, source: Source, parts: Sequence[Part]) -> list[NDArray[Any]]:
    """The arrays, as read-only views of the pages that the kernel keeps of the file. Local.

    Raises:
        FileError: The file cannot be opened or mapped, or was changed since it was looked at.
    """
    first = context.uid + context.segment_count + 1
    context.segment_count += len(parts)  # before anything fails: all ranks count alike
    origin = Origin("mapped file", "load", context.topology.node_size)
    flat = [part for part in parts if isinstance(part, Flat)]
    return [_view(source, part, origin, key) for key, part in enumerate(flat, first)]


def _view(source: Source, part: Flat, origin: Origin, key: int) -> NDArray[Any]:
    span = part.span
    if span.stop == span.start:
        nothing = part.view(np.empty(0, np.uint8))
        nothing.flags.writeable = False
        return nothing
    with file_errors(source.path, part.name):
        memory = Mapping.read_only(source.descriptor, span)
    segment = Segment(memory, span.stop - span.start, origin, key)
    segment.seal()
    return part.view(segment.block())
