"""Writes the drawings of the manual beside this file, one SVG for each function that `@drawing` marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

WIDTH = 720
LINE = 19  # from one line of text to the next

# The drawing has a ground of its own: it can be read where the page does not follow the reader's setting.
STYLE = """\
.ground { fill: #ffffff }
text { fill: #24292f; font: 14px system-ui, 'Segoe UI', Helvetica, 'DejaVu Sans', sans-serif }
.title { font-weight: 600; font-size: 15px }
.code { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
.dim { fill: #57606a }
text.on { fill: #14181c }
.line { stroke: #6b747d; stroke-width: 1.5; fill: none }
.head { fill: #6b747d }
.frame { stroke: #8c959f; fill: none }
.none { stroke: #8c959f; fill: none; stroke-dasharray: 5 4 }
.ours { fill: #d55e00 }
.others { fill: #7f9fb5 }
.ours-pale { fill: #d55e00; fill-opacity: 0.2; stroke: #d55e00 }
.others-pale { fill: #7f9fb5; fill-opacity: 0.2; stroke: #7f9fb5 }
.ours-none { fill: none; stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) {
  .ground { fill: #131416 }
  text { fill: #e6e8ea }
  .dim { fill: #a9b1b9 }
  .line { stroke: #98a1aa }
  .head { fill: #98a1aa }
}
"""

Drawing = Callable[[], tuple[int, Iterable[str]]]
DRAWINGS: dict[str, Drawing] = {}


def drawing(function: Drawing) -> Drawing:
    """Marks a function that returns the height of a drawing and its elements."""
    DRAWINGS[function.__name__.replace("_", "-")] = function
    return function


def text(x: float, y: float, lines: str, style: str = "", anchor: str = "middle") -> str:
    """Lines of text around the height `y`."""
    rows = lines.split("\n")
    first = y + 5 - LINE * (len(rows) - 1) / 2
    spans = (
        f'<text x="{x:g}" y="{first + LINE * row:g}" class="{style}" text-anchor="{anchor}">{escape(one)}</text>'
        for row, one in enumerate(rows)
    )
    return "\n".join(spans)


def left(x: float, y: float, lines: str, style: str = "") -> str:
    """Lines of text that begin at `x`."""
    return text(x, y, lines, style, "start")


def box(x: float, y: float, width: float, height: float, style: str, label: str = "", of_label: str = "") -> str:
    """A rectangle with a label in its middle."""
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{style}"/>'
    dark_on_full = "on " if style in ("ours", "others") else ""
    return shape + ("\n" + text(x + width / 2, y + height / 2, label, dark_on_full + of_label) if label else "")


def arrow(x: float, y: float, to_x: float, to_y: float, head: bool = True) -> str:
    """A line with or without a head."""
    end = ' marker-end="url(#head)"' if head else ""
    return f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" class="line"{end}/>'


def rank(x: float, y: float, number: int) -> str:
    """A rank, as a circle with its number."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="13" class="others-pale"/>\n' + text(x, y, str(number))


def time(y: float, start: float = 90, stop: float = 706) -> str:
    """The axis of time."""
    return left(14, y, "time", "dim") + "\n" + arrow(start, y, stop, y)


def svg(function: Drawing) -> str:
    """The whole file of a drawing."""
    height, elements = function()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">\n'
        f"<style>\n{STYLE}</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="head"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{height}" rx="6" class="ground"/>\n' + "\n".join(elements) + "\n</svg>\n"
    )


@drawing
def copies() -> tuple[int, Iterable[str]]:
    """Two nodes of four ranks: a copy per rank, and one copy per node."""
    parts = [
        text(180, 22, "MPI: one copy per rank", "title"),
        text(180, 46, "table = comm.bcast(table)", "code"),
        text(540, 22, "mpishare: one copy per node", "title"),
        text(540, 46, "table = ms.share(table)", "code"),
        arrow(360, 14, 360, 226, head=False),
    ]
    for node in range(2):
        without, with_us = 16 + 168 * node, 376 + 168 * node
        for start, held in ((without, "4 copies"), (with_us, "1 copy")):
            parts += [box(start, 66, 160, 132, "frame"), text(start + 80, 214, f"node {node}: {held}", "dim")]
            parts += [rank(start + 23 + 38 * place, 88, 4 * node + place) for place in range(4)]
        parts += [box(without + 7 + 38 * place, 112, 32, 80, "others") for place in range(4)]
        parts += [arrow(with_us + 23 + 38 * place, 102, with_us + 59 + 14 * place, 134) for place in range(4)]
        parts.append(box(with_us + 48, 136, 64, 40, "ours"))
    return 230, parts


@drawing
def which_call() -> tuple[int, Iterable[str]]:
    """Questions from top to bottom, and the calls to the right of each."""
    rows = [
        (
            "Do the ranks only read\nthe array?",
            "share: one rank has it\nload: it is in a file\nload(map=True): few items of a large file",
        ),
        (
            "Does each rank compute\na part of what its node reads?",
            'zeros: one array per node\npartition: own rows, with scope="node"\nfence: before others read them',
        ),
        (
            "Does one rank change it\nat each step?",
            "zeros: one array per node\nbcast: all of it, to all nodes\nput: a few items, to all nodes",
        ),
        (
            "Is it a result of all ranks?",
            "allreduce: the sum, on each node\nallgather: all rows, on each node\ngather: all rows, on one rank",
        ),
        ("Is it a list of tasks?", "map: one list of tasks\nPool: many lists, or an executor"),
        ("Is it for one other rank?", "send, recv: arrays and objects"),
        ("Is it for a later job?", "save: a file of results\nCheckpoint: to continue after a failure"),
    ]
    parts, y = [], 12
    for number, (question, calls) in enumerate(rows):
        lines = calls.split("\n")
        height = max(LINE * len(lines) + 18, 52)
        parts += [box(12, y, 236, height, "others-pale", question), box(304, y, 404, height, "ours-pale")]
        parts += [arrow(248, y + height / 2, 302, y + height / 2), text(273, y + height / 2 - 11, "yes", "dim")]
        for line, one in enumerate(lines):
            name, _, use = one.partition(": ")
            at = y + height / 2 + LINE * (line - (len(lines) - 1) / 2)
            parts += [left(314, at, name, "code"), left(442, at, use)]
        y += height + 26
        if number < len(rows) - 1:
            parts += [arrow(130, y - 26, 130, y - 2), left(138, y - 14, "no", "dim")]
    return y - 14, parts


@drawing
def fences() -> tuple[int, Iterable[str]]:
    """Two ranks of a node between two fences."""
    parts = [time(204), text(264, 20, "ms.fence()", "code"), text(498, 20, "ms.fence()", "code")]
    for number, writing, reading, again in ((0, 110, 198, 150), (1, 152, 140, 190)):
        y = 42 + 58 * number
        parts += [
            left(14, y + 20, f"rank {number}"),
            box(90, y, writing, 40, "others", "write"),
            box(276, y, reading, 40, "others-pale", "read"),
            box(510, y, again, 40, "others", "write"),
        ]
        for start, stop in ((90 + writing, 252), (276 + reading, 486)):
            wide = stop - start > 40
            parts.append(box(start, y, stop - start, 40, "none", "wait" if wide else "", "dim"))
    parts += [box(x, 34, 24, 116, "ours") for x in (252, 486)]
    parts += [
        text(264, 174, "1. What others wrote can be read.", "dim"),
        text(560, 174, "2. What others read can be overwritten.", "dim"),
    ]
    return 222, parts


@drawing
def halo() -> tuple[int, Iterable[str]]:
    """The rows of a plate on two nodes; the height is the row of the plate."""
    y = {-1: 44, 0: 70, 15: 148, 29: 200, 30: 226, 31: 252, 45: 304, 60: 382}  # where a row of the plate begins
    parts = [text(x, 22, f"node {node}: plate[0] to plate[31]", "title") for node, x in ((0, 220), (1, 550))]
    parts += [left(14, at, f"row {row}", "dim") for row, at in ((0, 83), (29, 213), (30, 239), (59, 369))]
    for x, row, stop, style, label in (
        (120, -1, 0, "others-pale", "the edge: stays 0"),
        (120, 0, 15, "ours-pale", "rank 0: rows 0 to 14"),
        (120, 15, 29, "ours-pale", "rank 1: rows 15 to 29"),
        (120, 29, 30, "ours-pale", "plate[-2]"),
        (120, 30, 31, "others-pale", "plate[-1]"),
        (450, 29, 30, "others-pale", "plate[0]"),
        (450, 30, 31, "ours-pale", "plate[1]"),
        (450, 31, 45, "ours-pale", "rank 2: rows 30 to 44"),
        (450, 45, 60, "ours-pale", "rank 3: rows 45 to 59"),
    ):
        parts.append(box(x, y[row], 200, y[stop] - y[row], style, label, "code" if "[" in label else ""))
    parts += [
        box(450, y[60], 200, 26, "others-pale", "the edge: stays 0"),
        *(text(385, 188, "ms.sendrecv", "code"), arrow(320, 213, 448, 213), arrow(450, 239, 322, 239)),
        *(box(120, 344, 20, 20, "ours-pale"), left(150, 354, "rows of the node itself")),
        *(box(120, 376, 20, 20, "others-pale"), left(150, 386, "the rows next to them")),
    ]
    return 422, parts


@drawing
def peak() -> tuple[int, Iterable[str]]:
    """The memory of the root's node while an array is shared."""
    unit, start = 190, 250
    parts = [text(start + unit * n, 20, ("0", "1 array", "2 arrays")[n], "dim") for n in range(3)]
    parts += [arrow(start + unit * n, 32, start + unit * n, 216, head=False) for n in range(3)]
    rows = [
        ("ms.share(np.load(file))", [("others", "the root's own copy"), ("ours", "the shared array")]),
        ("ms.load(file)", [("ours", "the shared array")]),
        ("ms.load(file, map=True)", [("ours-none", "page cache only")]),
    ]
    for number, (call, bars) in enumerate(rows):
        y = 44 + 58 * number
        parts.append(left(14, y + 22, call, "code"))
        parts += [box(start + unit * at, y, unit, 44, style, label) for at, (style, label) in enumerate(bars)]
    parts.append(left(start + unit + 10, 182, "The kernel drops it\nwhen memory is short.", "dim"))
    return 228, parts


@drawing
def segment() -> tuple[int, Iterable[str]]:
    """From a view on a rank to the pages of the node, and the end of the last view."""
    columns = (("view", 80, 60, "base"), ("ndarray", 190, 76, "base"), ("segment", 320, 86, ""), ("map", 446, 96, ""))
    parts = [box(592, 28, 112, 112, "ours", "pages\nof the node")]
    for number in range(2):
        y = 30 + 64 * number
        parts.append(left(14, y + 22, f"rank {number}"))
        for (name, x, width, follows), to_x in zip(columns, (190, 320, 446, 592), strict=True):
            parts += [box(x, y, width, 44, "others-pale", name), arrow(x + width, y + 22, to_x - 2, y + 22)]
            parts.append(text((x + width + to_x) / 2 - 3, y + 11, follows, "dim"))
    parts += [
        text(360, 168, "Of an MPI window it is a second map, and the window is freed at once.", "dim"),
        text(360, 208, "What is left when views are deleted", "title"),
    ]
    panels = (
        ((True, True), "ours", "in use", "Both ranks have views."),
        ((False, True), "ours", "in use", "Rank 0 has none. It notes\nthat, and sends nothing."),
        ((False, False), "ours-none", "idle", "No rank has one: kept for\na later array, or unmapped."),
    )
    for number, (views, style, label, words) in enumerate(panels):
        x = 14 + 236 * number
        parts += [box(x, 228, 220, 138, "frame"), box(x + 124, 242, 80, 64, style, label), text(x + 110, 336, words)]
        for place, has_view in enumerate(views):
            y = 242 + 36 * place
            parts.append(box(x + 14, y, 70, 28, "others-pale" if has_view else "none", f"rank {place}"))
            parts += [arrow(x + 84, y + 14, x + 122, y + 14)] if has_view else []
    return 380, parts


@drawing
def transfer() -> tuple[int, Iterable[str]]:
    """A share on three nodes in time, along a chain."""
    parts = [time(262), text(185, 30, "reserve\npages")]
    for x, label in ((92, "agree on\nthe call"), (256, "is there\nroom?"), (592, "read-only,\nagree")):
        parts += [box(x, 58, 22, 180, "ours"), text(x + 11, 30, label)]
    parts.append(text(435, 30, "chunks: each node sends on\nwhat it receives"))
    for node in range(3):
        y = 70 + 58 * node
        parts.append(left(14, y + 20, "node 0\n(root)" if node == 0 else f"node {node}"))
        parts += [box(118, y + 11 * place, 134, 8, "ours-pale") for place in range(4)]
        for chunk in range(6):
            x = 290 + 36 * (chunk + node)
            parts.append(box(x, y + 4, 32, 32, "ours-pale", "…" if chunk == 5 else str(chunk + 1)))
            parts += [arrow(x + 26, y + 38, x + 46, y + 60)] if node < 2 else []
        parts.append(box(624, y + 4, 80, 32, "others-pale", "view"))
    return 280, parts


@drawing
def agreement() -> tuple[int, Iterable[str]]:
    """Three ranks of which one fails, without an agreement and with one."""
    parts = [text(360, 22, "MPI alone", "title"), text(360, 232, "mpishare", "title"), time(430)]
    parts += [text(345, 198, "collective", "dim"), box(331, 248, 28, 144, "ours"), text(345, 408, "agreement", "dim")]
    for number in range(3):
        fails, y = number == 1, 44 + 48 * number
        for top in (y, y + 210):
            parts.append(left(14, top + 18, f"rank {number}"))
            parts.append(box(98, top, 214, 36, "others-pale", "local work fails" if fails else "local work"))
        if fails:
            parts.append(box(372, y, 330, 36, "others-pale", "raises its error"))
        else:
            parts += [box(331, y - 6, 28, 48, "others"), box(372, y, 330, 36, "none", "waits for rank 1, for ever")]
        raised = "raises its own error" if fails else "raises PeerError, with the text of rank 1"
        parts.append(box(372, y + 210, 330, 36, "ours-pale", raised))
    return 448, parts


def main() -> None:
    """Writes all of them."""
    for name, function in DRAWINGS.items():
        Path(__file__).with_name(f"{name}.svg").write_text(svg(function), encoding="utf-8")


if __name__ == "__main__":
    main()
