"""What is known of a message."""

from __future__ import annotations

from mpishare.comm.serial.buffers import BYTE, Datatype
from mpishare.comm.serial.constants import ANY_SOURCE, ANY_TAG, SUCCESS, UNDEFINED


class Status:
    """What is known of a message: the rank that sent it, its tag, its bytes, and whether it was cancelled."""

    def __init__(self, status: Status | None = None) -> None:
        """A copy of `status`, or that of no message."""
        self.source, self.tag, self.error = ANY_SOURCE, ANY_TAG, SUCCESS
        self.count, self.cancelled = 0, False
        if status is not None:
            self.take(status)

    def take(self, status: Status) -> None:
        """Becomes equal to `status`."""
        self.__dict__.update(status.__dict__)

    def Get_source(self) -> int:
        """The rank that sent it."""
        return self.source

    def Get_tag(self) -> int:
        """Its tag."""
        return self.tag

    def Get_error(self) -> int:
        """SUCCESS."""
        return self.error

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Its items, UNDEFINED where its bytes are no multiple of theirs."""
        return UNDEFINED if self.count and self.count % datatype.size else self.count // (datatype.size or 1)

    Get_elements = Get_count

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Says that it has `count` items."""
        self.count = count * datatype.size

    def Is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.cancelled
