"""Why tasks failed: the item and the error, as the other ranks hear of it.

A task's own error is taken apart to travel, and made again as a `TaskError` of its class. No `__init__` of its class is
called, as nobody knows the arguments with which the task called it: many classes take others than they leave in `args`.
So classes that pickle cannot make again travel, too.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias, cast

from mpishare.comm.context import Context
from mpishare.errors import PeerError, TaskError, text_of_error
from mpishare.objects.pickled import PickledObject
from mpishare.objects.pickling import pickle_object, unpickle_object

IN_TASK = "within a task"
"""Where a call was made, in errors."""


class ItemFailed(Exception):  # noqa: N818 - users never see it
    """The task of the item with the number `args[0]` failed. Its error is the `__cause__`."""


Facts: TypeAlias = tuple[int, int, str, str, str]
"""The arguments of `TaskError`."""


class ErrorState(NamedTuple):
    """An exception without its class's methods.

    Attributes:
        kind: Its class.
        args: Its `args`.
        attributes: What is in its `__dict__`, in slots, and in fields of C such as `errno`.
    """

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, error: BaseException) -> ErrorState:
        """The state of `error`; of a `TaskError` made here, the state of the task's own error."""
        if isinstance(error, _TypedTaskError):
            return error.state
        names = {name for kind in type(error).__mro__ for name, member in vars(kind).items() if _is_slot(name, member)}
        slots = {name: getattr(error, name) for name in names if hasattr(error, name)}
        return cls(type(error), error.args, slots | vars(error))

    def error(self, kind: type[BaseException] | None = None) -> BaseException:
        """A copy of the exception, of the class `kind` if that is given.

        Raises:
            Exception: The class cannot be made without its `__init__`.
        """
        kind = builtin = kind or self.kind
        while builtin.__module__ != "builtins":
            builtin = builtin.__base__  # type: ignore[assignment]
        error = builtin.__new__(kind, *self.args)
        # By `object`, as a class may refuse it. OSError's `__new__` leaves the arguments to an `__init__` to come.
        object.__setattr__(error, "args", self.args)
        for name, value in self.attributes.items():
            if getattr(error, name, self) is not value:
                with suppress(AttributeError):  # read-only, as in exception groups, whose `__new__` sets it
                    object.__setattr__(error, name, value)
        return error

    def task_error(self, facts: Facts) -> TaskError:
        """A `TaskError` of the exception's class.

        Raises:
            Exception: There can be no such class, as where a class can have no subclasses.
        """
        error = cast("_TypedTaskError", self.error(_class_for(self.kind)))  # type: ignore[arg-type]
        for name, value in zip(("item", "rank", "host", "reason", "traceback", "state"), (*facts, self), strict=True):
            object.__setattr__(error, name, value)
        return error


class _TypedTaskError(TaskError):
    """A `TaskError` whose last base is the class of the task's own error. `state` is that error's."""

    state: ErrorState

    def __reduce__(self) -> tuple[Any, ...]:
        return ErrorState.task_error, (self.state, (self.item, self.rank, self.host, self.reason, self.traceback))


@lru_cache
def _class_for(kind: type[BaseException]) -> type[_TypedTaskError]:
    return type(f"TaskError[{kind.__name__}]", (_TypedTaskError, kind), {"__module__": "mpishare"})


def _is_slot(name: str, member: object) -> bool:
    """Whether it travels. `AttributeError.obj` does not: it may be of any size, and pickle leaves it out as well."""
    is_internal = name.startswith("__") or name == "args" or member is vars(AttributeError)["obj"]
    return isinstance(member, GetSetDescriptorType | MemberDescriptorType) and not is_internal


class Failure(NamedTuple):
    """What other ranks hear of an error.

    Attributes:
        item: Number of the item whose task raised it; None if no task did, such as a signal handler's.
        reason: Class and text of the error.
        traceback: Its traceback, as text.
        state: The `ErrorState` of the error; None if it cannot be made again on other ranks.
    """

    item: int | None
    reason: str
    traceback: str
    state: PickledObject | None

    @classmethod
    def of(cls, error: BaseException, first: int = 0) -> Failure:
        """The failure by `error`. An `ItemFailed` counts its item from item number `first`."""
        item = first + error.args[0] if isinstance(error, ItemFailed) else None
        cause = cause_of(error)
        return cls(item, text_of_error(cause), "".join(traceback.format_exception(cause)), _pickled_state(cause))

    def task_error(self, context: Context, rank: int, first: int = 0, error: BaseException | None = None) -> TaskError:
        """The error for users, where the task ran on `rank`. Its item is counted from item number `first`.

        `error` is the failed task's own error where this rank ran the task.
        """
        facts = first + (self.item or 0), rank, _host(context, rank), self.reason, self.traceback
        task_error, cause = TaskError(*facts), error and cause_of(error)
        if self.state is not None:
            with suppress(Exception):  # its class cannot be imported on this rank
                state: ErrorState = unpickle_object(self.state)
                task_error, cause = state.task_error(facts), cause or state.error()
        task_error.__cause__ = cause
        return task_error


def _pickled_state(error: BaseException) -> PickledObject | None:
    """The state of `error`, if it can be made again from it. What ends a program or an iteration must not end others'.

    All ranks have to raise an error of the same class, so that this rank decides, and does not use what it has.
    """
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return None
    try:
        pickled = pickle_object(ErrorState.of(error))
        unpickle_object(pickled).task_error((0, 0, "", "", ""))
    except Exception:  # user classes may raise anything
        return None
    return pickled


def cause_of(error: BaseException) -> BaseException:
    """The error that a task raised, or `error` itself if no task raised it."""
    return error.__cause__ if isinstance(error, ItemFailed) and error.__cause__ is not None else error


def error_of(context: Context, error: BaseException | None, failures: Sequence[Failure | None]) -> BaseException:
    """What this rank raises. If several tasks failed, all ranks name the first item.

    Args:
        context: Of the communicator.
        error: This rank's own error.
        failures: Those of all ranks, by rank; at least one.
    """
    rank = context.topology.rank
    own = failures[rank]
    if error is not None and own is not None and own.item is None:
        return error
    failed = {rank: failure for rank, failure in enumerate(failures) if failure is not None}
    items = [(failure.item, rank) for rank, failure in failed.items() if failure.item is not None]
    if not items:
        lowest = min(failed)
        return PeerError(lowest, _host(context, lowest), failed[lowest].reason, len(failed) - 1)
    first = min(items)[1]
    return failed[first].task_error(context, first, error=error if first == rank else None)


def _host(context: Context, rank: int) -> str:
    return context.topology.hosts[context.topology.node_of(rank)]


def apply_to_items(func: Callable[[Any], Any], items: Iterable[Any], first: int = 0) -> list[Any]:
    """`func(item)` for each of `items`.

    Args:
        func: The task.
        items: May raise as well, such as where an item cannot be unpickled.
        first: Number of the first item.

    Raises:
        ItemFailed: A task or an item raised.
    """
    results: list[Any] = []
    append = results.append
    try:
        for item in items:
            append(func(item))
    except (Exception, SystemExit) as error:
        raise ItemFailed(first + len(results)) from error
    return results
