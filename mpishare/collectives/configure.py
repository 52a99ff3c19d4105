"""Settings by call."""

from __future__ import annotations

from mpishare.comm.context import is_in_use
from mpishare.config import set_variables, variables_of
from mpishare.errors import ArgumentError


def configure(**settings: object) -> None:
    """Sets what the MPISHARE variables set, for a program or a library that embeds mpishare.

    A variable of the environment goes before the call: whoever starts the program has the last word.

    Args:
        settings: Values by the name of the variable, in lower case without `MPISHARE_`: `recycle="2G"` for
            `MPISHARE_RECYCLE=2G`, or `excepthook=False` for `MPISHARE_EXCEPTHOOK=0`.

    Raises:
        ArgumentError: There is no such setting, its value is not allowed, or a communicator has been used already.

    Collective:
        No, local, but all ranks make it with equal values.

    Example:
        >>> import mpishare as ms
        >>> try:
        ...     ms.configure(recycel=0)
        ... except ms.ArgumentError as error:
        ...     print(error)
        recycel is no setting; did you mean recycle?
    """
    variables = variables_of(settings)
    if is_in_use():
        raise ArgumentError(
            "configure() comes too late: a communicator has been used, with the settings of then. Call it before the "
            "first collective."
        )
    set_variables(variables)
