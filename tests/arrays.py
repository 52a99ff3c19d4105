"""Arrays of every dtype and layout that can be shared, with bytes that tell one from another.

`every_array` is for the tests of the spec alone. All other tests take the seven of `REPRESENTATIVES`.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMPY = "numpy._core" if int(np.__version__.split(".")[0]) >= 2 else "numpy.core"
rational: Any = import_module(f"{_NUMPY}._rational_tests").rational
"""A dtype that is not NumPy's own, as bfloat16 is not."""

STRUCT = np.dtype([("id", "<i4"), ("mass", ">f8"), ("name", "S3")])

SIMPLE = "? i1 u1 i4 i8 q Q f2 f4 f8 g c16 G S5 U3 V7 >i2 >u8 >f4 >f8 >c16 >U3 M8[ns] M8[D] M8[25s] m8[s] m8 >M8[us]"
DTYPES = {
    **{name: np.dtype(name) for name in SIMPLE.split()},
    "struct": STRUCT,
    "nested": np.dtype([("here", STRUCT), ("there", STRUCT, (2,)), ("when", "M8[s]")]),
    "aligned": np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")], align=True),
    "subarray": np.dtype([("matrix", ">f4", (2, 3)), ("flag", "?")]),
    "gaps": np.dtype({"names": ["x", "y"], "formats": ["i2", "f4"], "offsets": [5, 11], "itemsize": 20}),
    "overlap": np.dtype({"names": ["word", "half"], "formats": ["u4", "u2"], "offsets": [0, 2]}),
    "titles": np.dtype([(("degrees", "angle"), "f8"), (("metres", "range"), "f4")]),
    "unicode names": np.dtype([("größe", "f8"), ("名", "i4")]),
    "record": np.dtype((np.record, [("a", "i4"), ("b", "f8")])),
    "many columns": np.dtype([(f"column{number}", "f4") for number in range(60)]),
    "foreign": np.dtype(rational),
    "foreign column": np.dtype([("id", "<i4"), ("part", rational, (2,))]),
    "no columns": np.dtype([]),
    "no bytes": np.dtype("S0"),
    "no characters": np.dtype("U0"),
}


def filled(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 7) -> NDArray[Any]:
    """An array of arbitrary bytes, its padding included; the same ones for the same seed."""
    array = np.empty(shape, np.dtype([("item", dtype)]))["item"]  # NumPy makes arrays of 'S0' only as a column
    if array.nbytes:
        values = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, array.nbytes, np.uint8)
        array.reshape(-1).view(np.uint8)[:] = values
    return array


def layouts(dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """One array of `dtype` for each way its items can lie in memory."""
    base = filled(dtype, (4, 6, 5))
    return {
        "C": base,
        "Fortran": np.asfortranarray(base),
        "strided": base[::2, 1:, ::3],
        "reversed": base[::-1, :, ::-1],
        "transposed": base.transpose(1, 2, 0),
        "broadcast, read-only": np.broadcast_to(base[:, :1, :1], (4, 3, 2)),
        "one dimension": base[0, 0],
        "five dimensions": filled(dtype, (2, 1, 3, 1, 2)),
        "0-d": filled(dtype, ()),
        "no items": filled(dtype, (0, 3)),
        "one item": filled(dtype, (1, 1)),
    }


def every_array() -> Iterator[tuple[str, NDArray[Any]]]:
    """An array of each dtype in each layout, with its name."""
    for name, dtype in DTYPES.items():
        yield from ((f"{name}, {layout}", array) for layout, array in layouts(dtype).items())


CHOSEN = ["f8, C", ">c16, Fortran", "struct, strided", "gaps, reversed"]
CHOSEN += ["M8[ns], 0-d", "S5, no items", "foreign, reversed"]
REPRESENTATIVES = {name: array for name, array in every_array() if name in CHOSEN}
"""One array for each way in which the library treats arrays differently: contiguous or not, a dtype that the header
holds or that needs an extension, padding, no dimension, no bytes."""


def bits(array: NDArray[Any]) -> bytes:
    """The bytes of each item in C order, padding included."""
    if array.nbytes == 0:
        return b""
    return array.view(np.dtype((np.void, array.dtype.itemsize))).tobytes()


def assert_same(result: NDArray[Any], expected: NDArray[Any]) -> None:
    """Both have the same bits and shape, and dtypes that are equal."""
    assert (result.dtype, result.shape, bits(result)) == (expected.dtype, expected.shape, bits(expected))
