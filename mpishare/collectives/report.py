"""report: the node-shared memory that this process views, and what sharing it saves."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpishare.comm.callsite import text_of_place
from mpishare.memory.pages import domains_of_maps, huge_areas, huge_bytes
from mpishare.memory.segment import Segment, live_segments


@dataclass(frozen=True)
class SegmentReport:
    """One live segment as this rank sees it.

    Attributes:
        made_by: The call that made it.
        backend: Where its memory comes from.
        nbytes: Bytes of the array, or of all arrays of an object and of its pickle.
        bytes_in_views: How many of them arrays are views of. The rest is the pickle, and arrays that the object's
            classes copied or left out.
        node_size: Ranks on the node.
        copies: How many times the node holds the bytes: once, or once per rank.
        page_bytes: Size of its memory pages, as far as this rank has used them.
        refusals: For each backend that was tried before, the reason why it was not used.
        bytes_copied: Bytes that each rank holds for itself of the object that was shared, such as Python objects, and
            arrays that its classes copy; 0 for an array.
        rows_per_node: Of a `Distributed`, of which `nbytes` are the bytes of this node, the rows that each node holds.
        bytes_per_node: The bytes of these rows.
        bytes_by_domain: On each domain of memory (NUMA node), the bytes of its pages that this rank has used; empty
            for less than a huge page, and where the kernel does not say.
        where: The file and line of that call; empty for less than 64 KiB.
        dtype: The dtype of the array; None for an object, or several arrays of a file.
        shape: Its shape, of a `Distributed` that of the rows on this node; None where `dtype` is.
    """

    made_by: str
    backend: str
    nbytes: int
    bytes_in_views: int
    node_size: int
    copies: int
    page_bytes: int
    refusals: dict[str, str]
    bytes_copied: int
    rows_per_node: tuple[int, ...] = ()
    bytes_per_node: tuple[int, ...] = ()
    bytes_by_domain: dict[int, int] = field(default_factory=dict)
    where: str = ""
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None

    @property
    def bytes_held(self) -> int:
        """Bytes that the node holds of it."""
        return self.nbytes * self.copies

    @property
    def bytes_saved(self) -> int:
        """Bytes that this node would hold in addition with one copy per rank."""
        return self.bytes_in_views * (self.node_size - self.copies)

    def __str__(self) -> str:
        times = "once" if self.copies == 1 else f"{self.copies} times"
        size = f"{self.nbytes:>18,} bytes {times} for {self.node_size} ranks"
        array = "" if self.dtype is None else f", {self.dtype} {self.shape}"
        at = f", {self.where}" if self.where else ""
        lines = [f"  {self.made_by:8} {size}, {self.backend}, page {self.page_bytes:,}{array}{at}"]
        lines += [f"    and {self.bytes_copied:,} bytes copied to each rank"] if self.bytes_copied else []
        numbers = enumerate(zip(self.rows_per_node, self.bytes_per_node, strict=True))
        lines += [f"    node {node}: {rows:,} rows, {nbytes:,} bytes" for node, (rows, nbytes) in numbers]
        if len(self.bytes_by_domain) > 1:
            domains = (f"{nbytes:,} on {domain}" for domain, nbytes in self.bytes_by_domain.items())
            lines.append(f"    bytes used on memory domains: {'; '.join(domains)}")
        lines += [f"    not {title}: {reason}" for title, reason in self.refusals.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """The live segments that this rank views; printing it gives a table.

    Attributes:
        segments: The largest first.
    """

    segments: tuple[SegmentReport, ...]

    @property
    def bytes_shared(self) -> int:
        """Bytes that this node holds."""
        return sum(segment.bytes_held for segment in self.segments)

    @property
    def bytes_saved(self) -> int:
        """Bytes that this node would hold in addition with one copy per rank."""
        return sum(segment.bytes_saved for segment in self.segments)

    @property
    def bytes_copied(self) -> int:
        """Bytes that this rank holds for itself of objects that were shared."""
        return sum(segment.bytes_copied for segment in self.segments)

    @property
    def summary(self) -> str:
        """What sharing saves on this node, such as "3.8 MB per node instead of 15.2 MB with one copy per rank"."""
        held, copies = (
            f"{nbytes / 1e6:,.1f} MB" for nbytes in (self.bytes_shared, self.bytes_shared + self.bytes_saved)
        )
        return f"{held} per node instead of {copies} with one copy per rank"

    def __str__(self) -> str:
        head = f"{len(self.segments)} live segments, {self.bytes_shared:,} bytes shared, {self.bytes_saved:,} saved"
        return "\n".join([head, *map(str, self.segments)])


def report() -> Report:
    """Lists the node-shared memory that this rank views, and what sharing it saves.

    Returns:
        A `Report`, in bytes; `print` it for a table.

    Collective:
        No, local.

    Example:
        >>> import mpishare as ms
        >>> table = ms.zeros((1000, 8))
        >>> ms.report().segments[0].nbytes
        64000
    """
    segments = [segment for segment in live_segments() if segment.key is not None]
    has_large = any(map(_may_be_huge, segments))  # reading the maps takes up to 0.1 s
    areas = huge_areas() if has_large else []
    starts, used = domains_of_maps() if has_large else ([], [{}])
    reports = [_report_of(segment, areas, starts, used) for segment in segments]
    return Report(tuple(sorted(reports, key=lambda segment: segment.nbytes, reverse=True)))


def _may_be_huge(segment: Segment) -> bool:
    return segment.nbytes >= huge_bytes()


def _report_of(segment: Segment, huge: list[range], starts: list[int], used: list[dict[int, int]]) -> SegmentReport:
    origin, spec = segment.origin, segment.spec
    if segment.unviewed_bytes or (spec is not None and spec.nbytes != segment.nbytes):
        spec = None  # that of one of several arrays
    is_huge = _may_be_huge(segment) and any(segment.address + segment.nbytes // 2 in area for area in huge)
    return SegmentReport(
        made_by=segment.made_by,
        backend=origin.backend,
        nbytes=segment.nbytes,
        bytes_in_views=segment.nbytes - segment.unviewed_bytes,
        node_size=origin.node_size,
        copies=1 if origin.is_shared else origin.node_size,
        page_bytes=huge_bytes() if is_huge else os.sysconf("SC_PAGE_SIZE"),
        refusals=dict(origin.refusals),
        bytes_copied=segment.copied_bytes,
        rows_per_node=segment.rows_per_node,
        bytes_per_node=tuple(rows * segment.row_bytes for rows in segment.rows_per_node),
        bytes_by_domain=used[bisect_right(starts, segment.address) if _may_be_huge(segment) else 0],
        where=text_of_place(*segment.place) if segment.place else "",
        dtype=None if spec is None else spec.dtype,
        shape=None if spec is None else spec.shape,
    )
