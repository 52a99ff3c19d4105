"""Objects of other libraries around views: the real ones, but for PyTorch, which is 6 GB with all that it needs."""

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import xarray
from astropy import units
from astropy.coordinates import SkyCoord
from astropy.table import MaskedColumn, QTable, Table
from astropy.time import Time
from astropy.utils.masked import Masked
from polars.testing import assert_frame_equal

from mpishare.objects.pickling import PickledObject, pickle_object, unpickle_object
from mpishare.objects.unshared import UnsharedParts, describe

NUMBERS = np.arange(1000.0)
MASK = NUMBERS % 7 == 0
MASKED_QUANTITIES = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="astropy 6, the last for Python 3.10, cannot pickle masked quantities"
)


def through_read_only_views(obj):
    """`obj` pickled and unpickled, and the bytes of the arrays around which it is; they become those of its own again.

    No bytes but these are pickled, and arrays of 1000 bytes or more are not copied when the object is unpickled.
    """
    pickled = pickle_object(obj)
    arrays = [np.array(array, order="K") for array in pickled.arrays]
    for array in arrays:
        array.flags.writeable = False
    result = unpickle_object(PickledObject(pickled.skeleton, arrays))
    again = [array for array in pickle_object(result).arrays if array.nbytes >= 1000]
    assert all(any(np.shares_memory(item, array) for array in arrays) for item in again)
    assert type(result) is type(obj)
    return result, sum(array.nbytes for array in arrays)


def quantity():
    quantity = NUMBERS * units.K
    quantity.info.description = "of the air"
    return quantity


def table(kind):
    columns = {"air": quantity(), "mass": MaskedColumn(NUMBERS, mask=MASK, fill_value=-1.0, description="dry")}
    return kind(columns, meta={"of": "today"})


@MASKED_QUANTITIES
def test_quantities_and_columns():
    result, _ = through_read_only_views(quantity())
    assert (result.unit, result.info.description, result.value.tolist()) == (units.K, "of the air", NUMBERS.tolist())
    column, _ = through_read_only_views(table(Table)["mass"])
    assert (column.name, column.description, column.fill_value) == ("mass", "dry", -1)
    assert column.mask.tolist() == MASK.tolist()
    of_table, _ = through_read_only_views(table(QTable)["air"])
    assert (of_table.info.name, of_table.info.parent_table) == ("air", None)


@MASKED_QUANTITIES
@pytest.mark.parametrize("kind", [Table, QTable])
def test_tables(kind):
    expected = table(kind)
    result, _ = through_read_only_views(expected)
    assert [type(result[name]) for name in result.colnames] == [type(expected[name]) for name in expected.colnames]
    assert (result.meta, result["air"].unit) == ({"of": "today"}, "K")
    assert result["air"].info.parent_table is result
    assert expected["air"].info.parent_table is expected
    assert result["mass"].mask.tolist() == expected["mass"].mask.tolist()
    assert str(result) == str(expected)
    expected.add_index("mass")
    assert len(unpickle_object(pickle_object(expected)).indices) == 1
    sky = SkyCoord(NUMBERS * units.mas, NUMBERS * units.mas)
    mixed, _ = through_read_only_views(QTable({"when": Time(NUMBERS, format="jd"), "sky": sky}))
    assert (mixed["when"].jd[-1], mixed["sky"].ra.mas[-1]) == (999, pytest.approx(999))


@MASKED_QUANTITIES
def test_masks_of_astropy_are_views_too():
    masked = Masked(quantity(), mask=MASK)
    result, nbytes = through_read_only_views(masked)
    assert (nbytes, str(result.unit), result.info.description) == (9000, "K", "of the air")
    assert (result.mask.tolist(), result.unmasked.value.tolist()) == (MASK.tolist(), NUMBERS.tolist())
    for other in (
        Masked(3.0 * units.K, mask=True),
        Masked(NUMBERS, mask=False),
        SkyCoord(masked.value * units.deg, NUMBERS * units.arcmin).ra,
    ):
        result, _ = through_read_only_views(other)
        assert str(result) == str(other)


def frame():
    return pl.DataFrame(
        {
            "number": NUMBERS,
            "missing": [1, None] * 500,
            "text": ["short", "longer than twelve bytes"] * 500,
            "flag": [True, False] * 500,
            "list": [[1, 2], None] * 500,
            "record": [{"a": 1, "b": "x"}] * 1000,
            "when": pl.Series([1, 2] * 500).cast(pl.Datetime("us", "UTC")),
        }
    )


def test_frames_of_polars():
    for expected in (frame(), frame()[5:700], pl.concat([frame(), frame()], rechunk=False), frame().head(0)):
        result, nbytes = through_read_only_views(expected)
        assert_frame_equal(result, expected)
        assert nbytes > expected.height * 50
    for expected in (pl.DataFrame(), frame().select(pl.col("text").cast(pl.Categorical))):
        assert_frame_equal(unpickle_object(pickle_object(expected)), expected)  # copied
    numbers, shared = pl.Series(NUMBERS), np.array(NUMBERS)
    shared.flags.writeable = False
    series = unpickle_object(PickledObject(pickle_object(numbers).skeleton, [shared]))
    series[3] = -1.0  # polars copies what is not its own
    assert (series[3], shared[3]) == (-1, 3)


def indexed_table():
    indexed = Table({"a": NUMBERS, "b": NUMBERS})
    indexed.add_index("a")
    return indexed


COPIED = [
    (indexed_table(), "a Table with an index"),
    (frame().select("number", pl.col("text").cast(pl.Categorical)), "column 'text' of dtype Categorical"),
    (pl.Series("named", [{"x": "x"}] * 1000, pl.Struct({"x": pl.Enum(["x"])})), "column 'named' of dtype Struct"),
    (pl.Series("large", [1] * 1000, pl.Int128), "column 'large' of dtype Int128"),
]


@pytest.mark.parametrize(("obj", "description"), COPIED)
def test_what_a_library_copies_is_reported(obj, description):
    parts = UnsharedParts()
    pickled = pickle_object(obj, parts)
    assert [part.description for part in parts.parts] == [description]
    assert parts.parts[0].nbytes >= len(NUMBERS)
    assert type(unpickle_object(pickled)) is type(obj)
    pickle_object([obj[:0], frame(), table(Table)], parts)
    assert parts.parts == []


def test_a_data_set_of_xarray_that_is_not_loaded(tmp_path):
    xarray.Dataset({"t": (("a", "b"), np.ones((400, 400)))}).to_netcdf(tmp_path / "t.nc", engine="netcdf4")
    with xarray.open_dataset(tmp_path / "t.nc", engine="netcdf4") as data:
        pickle_object(data, parts := UnsharedParts())
        assert "dimensions ('a', 'b'), which is not loaded yet" in describe(parts.parts)
        assert parts.parts[0].nbytes == 400 * 400 * 8
        pickle_object(data.load(), parts)
        assert parts.parts == []


class UntypedStorage:
    """Memory of tensors, which pickles its bytes."""

    def __init__(self, buffer, device="cpu"):
        self.buffer = buffer if device == "cpu" and not isinstance(buffer, int) else bytearray(buffer)
        self.device = SimpleNamespace(type=device)

    def __reduce__(self):
        return UntypedStorage, (bytes(self.buffer), self.device.type)


class TypedStorage:
    """A storage and the dtype, made anew for each tensor that is pickled."""

    def __init__(self, *, wrap_storage, dtype, _internal):
        self._untyped_storage, self.dtype = wrap_storage, dtype

    def __reduce__(self):
        raise AssertionError("its bytes would be pickled")


class Tensor:
    """A part of a storage as an array."""

    def __init__(self, storage, dtype, offset=0):
        self._storage, self._dtype, self._offset = storage, dtype, offset

    def __reduce_ex__(self, _):
        typed = TypedStorage(wrap_storage=self._storage, dtype=self._dtype, _internal=True)
        return _rebuild_tensor, (typed, self._offset)

    def set_(self, storage):
        return Tensor(storage, np.uint8)

    def numpy(self):
        return np.frombuffer(self._storage.buffer, self._dtype, offset=self._offset)

    def untyped_storage(self):
        return self._storage


class TensorOfNewDtype(Tensor):
    """One of float8, uint16, …: it pickles the untyped storage, as `torch._tensor.Tensor._reduce_ex_internal` says."""

    def __reduce_ex__(self, _):
        return _rebuild_tensor_v3, (self._storage, self._offset, self._dtype)


def _rebuild_tensor_v3(storage, offset, dtype):
    return TensorOfNewDtype(storage._untyped_storage, dtype, offset)


def _rebuild_tensor(typed, offset):
    return Tensor(typed._untyped_storage, typed.dtype, offset)


def frombuffer(buffer, dtype):
    assert not memoryview(buffer).readonly, "PyTorch warns"
    assert memoryview(buffer).nbytes, "PyTorch takes no empty one"
    return Tensor(UntypedStorage(buffer), dtype)


@pytest.fixture
def _torch(monkeypatch):
    """What `mpishare` uses of PyTorch, by the same names and with the same rules."""
    storages = {"UntypedStorage": UntypedStorage, "TypedStorage": TypedStorage}
    functions = {"uint8": np.uint8, "frombuffer": frombuffer, "empty": lambda n, dtype: Tensor(bytearray(n), dtype)}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**storages, **functions))


@pytest.mark.usefixtures("_torch")
def test_tensors_are_views_of_one_storage_as_long_as_one_exists():
    storage = UntypedStorage(bytearray(np.arange(1000.0)))
    tensors = [Tensor(storage, np.float64), Tensor(storage, np.int64, 800), Tensor(UntypedStorage(0), np.float64)]
    pickled = pickle_object(tensors)
    assert [array.nbytes for array in pickled.arrays] == [8000, 0]
    assert len(pickled.skeleton) < 600
    shared = np.array(pickled.arrays[0])
    shared.flags.writeable = False
    whole, part, empty = unpickle_object(PickledObject(pickled.skeleton, [shared, np.empty(0, np.uint8)]))
    assert (whole.numpy().tolist(), part.numpy().size, empty.numpy().size) == (list(range(1000)), 900, 0)
    assert whole.untyped_storage() is part.untyped_storage()
    assert whole.numpy().ctypes.data == shared.ctypes.data
    memory = weakref.ref(shared)
    del shared, whole, pickled
    gc.collect()
    assert memory() is not None
    del part
    gc.collect()
    assert memory() is None


@pytest.mark.usefixtures("_torch")
def test_tensors_of_newer_dtypes():
    storage = UntypedStorage(bytearray(np.arange(5, dtype=np.uint16)))
    tensors = unpickle_object(pickle_object([TensorOfNewDtype(storage, np.uint16), Tensor(storage, np.uint16, 2)]))
    assert [tensor.numpy().tolist() for tensor in tensors] == [[0, 1, 2, 3, 4], [1, 2, 3, 4]]
    assert tensors[0].untyped_storage() is tensors[1].untyped_storage()


class JaxArray:
    """An array of JAX: in memory of its own, or around an array that is not copied."""

    def __init__(self, items, platform="cpu", weak_type=False):
        self.items, self.dtype, self.weak_type = items, items.dtype, weak_type
        self.platform = platform

    def devices(self):
        return {self}

    def __array__(self, dtype=None, copy=None):
        return self.items.view()

    def __reduce__(self):
        return _rebuild_jax_array, (self.items.tolist(), self.weak_type)


def _rebuild_jax_array(items, weak_type):
    return JaxArray(np.array(items), weak_type=weak_type)


def device_put(items, may_alias):
    assert may_alias
    return JaxArray(items)


def test_arrays_of_jax_are_made_around_views(monkeypatch):
    """By what `mpishare` uses of JAX, under the same names."""
    dtypes = SimpleNamespace(extended=np.void, issubdtype=np.issubdtype)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=JaxArray, dtypes=dtypes, device_put=device_put))
    arrays = [JaxArray(np.arange(3.0)), JaxArray(np.arange(4.0), "gpu"), JaxArray(np.ones(1), weak_type=True)]
    pickled = pickle_object(arrays)
    of_cpu, of_gpu, weak = unpickle_object(pickled)
    assert [array.nbytes for array in pickled.arrays] == [24]
    assert np.shares_memory(of_cpu.items, pickled.arrays[0])
    assert (of_gpu.items.tolist(), weak.items.tolist(), weak.weak_type) == ([0.0, 1.0, 2.0, 3.0], [1.0], True)
