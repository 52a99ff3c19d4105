"""Loads without MPI: what the readers of one node would read, piece by piece."""

import os

import numpy as np

from mpishare.files.inspect import inspect_file
from mpishare.files.load import _nested as nested
from mpishare.files.parallel_read import layout_of
from mpishare.files.source import Source

SMALL_PIECE_BYTES = 64


def loaded(path, dataset=None, region=None, *, piece_bytes=SMALL_PIECE_BYTES):
    """What `load` returns, read in small pieces, the last one first."""
    with Source(str(path)) as source:
        contents = inspect_file(source, dataset, region, attributes=False)
        offsets, nbytes = layout_of(contents.parts)
        block = np.full(nbytes, 0xEE, np.uint8)
        for part, offset in zip(contents.parts, offsets, strict=True):
            for piece in reversed(list(part.pieces(piece_bytes))):
                part.read(source, piece.items, block[offset : offset + part.spec.nbytes])
        source.check()
    arrays = [part.spec.view(block[offset:]) for part, offset in zip(contents.parts, offsets, strict=True)]
    return nested(contents, arrays)


def inspected(path, dataset=None, region=None, *, attributes=False):
    """What `load` finds in the file."""
    with Source(str(path)) as source:
        return inspect_file(source, dataset, region, attributes=attributes)


def failing(code):
    """A call that the operating system refuses."""

    def call(*_, **__):
        raise OSError(code, os.strerror(code))

    return call
