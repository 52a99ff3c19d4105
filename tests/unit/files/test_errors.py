"""Every error of a file is a FileError that names the file, the reason and the outcome."""

import errno

import pytest

from mpishare.errors import ArgumentError, CapacityError, FileError, SpecError
from mpishare.files.errors import file_errors

FOREIGN = [
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", errno.ENOSPC),
    (OSError("HDF5 says so\nand how it came to it"), "HDF5 says so", None),
    (EOFError("the file ends"), "the file ends", None),
    (KeyError("no 'a'"), "no 'a'", None),
    (RuntimeError(), "RuntimeError", None),
    (TypeError("no\ntype"), "no", None),
]


@pytest.mark.parametrize(("error", "reason", "number"), FOREIGN)
def test_foreign_errors(error, reason, number):
    with pytest.raises(FileError) as caught, file_errors("/a.h5", "x", "it was not saved"):
        raise error
    assert str(caught.value) == f"dataset 'x' of /a.h5: {reason}; it was not saved"
    assert (caught.value.errno, caught.value.__cause__) == (number, error)
    with pytest.raises(FileError) as caught, file_errors("/a.npy"):
        raise error
    assert str(caught.value) == f"/a.npy: {reason}"


def test_own_errors():
    with pytest.raises(SpecError, match=r"^dataset 'x' of /a\.h5: dtype object$"), file_errors("/a.h5", "x", "lost"):
        raise SpecError("dtype object")
    for error in (FileError("/b", None, "is gone"), ArgumentError("n is -1"), CapacityError("h", "/tmp", 2, 1, "")):
        with pytest.raises(type(error)) as caught, file_errors("/a.h5"):
            raise error
        assert caught.value is error
