"""Dtypes that cannot be shared, and strings that are not the description of a dtype."""

import pickle
import sys

import numpy as np
import pytest

from mpishare.arrays.dtypes import check_dtype, is_native_number, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError
from tests.arrays import DTYPES

BAD = [
    (object, "it holds Python objects"),
    ([("a", "i4"), ("b", "O")], "column 'b' holds Python objects"),
    ([("a", [("b", "O")])], "column 'a' holds Python objects"),
    ({"names": ["a"], "formats": ["f8"], "titles": [b"x"]}, "title of a column is not a string"),
]
if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # strings of any length came with NumPy 2
    BAD.append(("T", "strings live outside the array"))


@pytest.mark.parametrize(("dtype", "message"), BAD)
def test_dtypes_that_are_not_bytes(dtype, message):
    with pytest.raises(SpecError, match=message):
        check_dtype(np.dtype(dtype))


def test_dtypes_that_are_defined_outside_numpy(monkeypatch):
    """Their name travels; a rank that cannot import it receives bytes, and says so where an array is made of them."""
    modules = [sys.modules[DTYPES["foreign"].type.__module__], pytest.importorskip("ml_dtypes")]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, np.generic)]
    assert len(kinds) > 10
    for kind in kinds:
        array = np.arange(4).astype(kind)
        spec = Spec.of(array)
        assert Spec.unpack(*spec.packed) == spec == Spec.make(4, kind)
        assert spec.view(bytearray(array.tobytes())).tobytes() == array.tobytes()
    packed = Spec.make((5, 7), [("a", kinds[-1])]).packed
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    received = Spec.unpack(*packed)
    assert (received.nbytes, received.missing[:6]) == (35, "dtype ")
    with pytest.raises(SpecError, match=r"ml_dtypes.*Install it for all ranks"):
        received.view(bytearray(35))


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.kind in "biufc"])
def test_equal_dtypes_are_numbers_of_this_machine_alike(name):
    """Ranks must not differ in it, as they choose their way by it."""
    dtype = DTYPES[name]
    alike = pickle.loads(pickle.dumps(dtype)), dtype.newbyteorder().newbyteorder(), np.dtype(dtype, metadata={"a": 1})
    assert {is_native_number(other) for other in alike} == {is_native_number(dtype)} == {dtype.isbuiltin == 1}


class Parametric:
    """A dtype whose name says less than all of it, as those of NumPy's newer interface can."""

    num, hasobject, isbuiltin, itemsize, fields, type = -1, False, 1, 16, None, np.float64
    names = subdtype = None


def test_a_dtype_that_its_name_does_not_describe_is_refused():
    with pytest.raises(SpecError, match=r"would make float64 of it\. Share its bytes, e\.g\. \.view\('V16'\)"):
        check_dtype(Parametric())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"Share its bytes, e\.g\. \.view\('V"):
        check_dtype(DTYPES["foreign"].newbyteorder())
    for module, name in (("os", "path"), ("builtins", "dict")):
        with pytest.raises(ValueError, match="is not a type of items"):
            rebuild({"module": module, "name": name})


@pytest.mark.parametrize("description", ["O", "f8,f8", "(2,)f8", "T", "f12345678901", "", "|V8[s"])
def test_strings_that_numpy_would_evaluate_are_refused(description):
    with pytest.raises(ValueError, match="not a dtype of a fixed size"):
        rebuild(description)
