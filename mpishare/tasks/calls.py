"""Calls of tasks: which item's failed, and that none calls for the other ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from mpishare.comm import mpi
from mpishare.errors import ArgumentError
from mpishare.tasks.items import Items

_local = threading.local()
"""`is_in_task` where this thread runs a task."""


class Failed(Exception):  # noqa: N818 - no caller sees it
    """A task failed, by the error that is the cause."""

    def __init__(self, item: int) -> None:
        super().__init__(item)
        self.item = item

    @classmethod
    def by(cls, error: Exception, item: int) -> Failed:
        """The failure of that item's task by `error`."""
        failed = cls(item)
        failed.__cause__ = error
        return failed


def called(func: Callable[[Any], Any], items: Items, portion: range) -> list[Any]:
    """What `func` returns for the items with these numbers."""
    values: list[Any] = []
    append = values.append
    was_in_task, _local.is_in_task = getattr(_local, "is_in_task", False), True
    try:
        for item in items.of(portion):
            append(func(item))
    except Exception as error:
        raise Failed(portion.start + len(values)) from error
    finally:
        _local.is_in_task = was_in_task
    return values


def within_task(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function that may not call for the other ranks."""
    was_in_task, _local.is_in_task = getattr(_local, "is_in_task", False), True
    try:
        return func(*args, **kwargs)
    finally:
        _local.is_in_task = was_in_task


def is_named(func: Any) -> bool:
    """Whether it is pickled by its name alone, so that the same function is always the same."""
    if isinstance(func, BuiltinFunctionType):
        return func.__self__ is None or isinstance(func.__self__, ModuleType)
    return isinstance(func, FunctionType) and func.__closure__ is None and "<" not in func.__qualname__


def refuse_within_task(comm: mpi.Comm | None) -> None:
    """Raises ArgumentError where a task calls for other ranks, which run tasks of their own."""
    size = mpi.COMM_WORLD.size if comm is None and mpi.Is_initialized() else getattr(comm, "size", 1)
    if getattr(_local, "is_in_task", False) and size > 1:
        raise ArgumentError(
            "map was called within a task, but the other ranks run tasks of their own and do not join. Map over all "
            "items of both levels at once, or pass comm=MPI.COMM_SELF."
        )
