"""Constants of MPI, and its error."""

from __future__ import annotations

import builtins

IN_PLACE, BOTTOM, INFO_NULL = object(), object(), None
ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED = -1, -1, -2, -32766
COMM_TYPE_SHARED, ERRORS_RETURN, TAG_UB = range(3)
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
IDENT, CONGRUENT, SIMILAR, UNEQUAL = range(4)
SUCCESS, ERR_TAG, ERR_RANK, ERR_ROOT, ERR_TRUNCATE, ERR_OTHER = range(6)
LARGEST_TAG = (1 << 31) - 1


class Exception(builtins.RuntimeError):  # noqa: A001 - the name in mpi4py
    """An error of MPI."""

    def __init__(self, text: str, error_class: int = ERR_OTHER) -> None:
        super().__init__(text)
        self._error_class = error_class

    def Get_error_class(self) -> int:
        """Its class, such as ERR_TRUNCATE."""
        return self._error_class

    Get_error_code = Get_error_class

    def Get_error_string(self) -> str:
        """Its text."""
        return str(self)


def never() -> Exception:
    """The error of a call that would wait for ever."""
    return Exception("this rank is alone, and waits for a message that it has not sent")
