"""Writes the drawings of the manual: an SVG beside this file, and one in `tall/`, for each `@drawing`.

A narrow screen shows the tall form, which is half as wide, so that its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

WIDTH, TALL_WIDTH = 720, 360
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

Drawing = Callable[[bool], tuple[int, Iterable[str]]]
DRAWINGS: dict[str, Drawing] = {}


def drawing(function: Drawing) -> Drawing:
    """Marks a function that returns the height of a drawing, in its wide or tall form, and its elements."""
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


def moved(parts: Iterable[str], x: float, y: float) -> str:
    """Elements in another place."""
    return "\n".join([f'<g transform="translate({x:g} {y:g})">', *parts, "</g>"])


def rank(x: float, y: float, number: int) -> str:
    """A rank, as a circle with its number."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="13" class="others-pale"/>\n' + text(x, y, str(number))


def time(y: float, start: float = 90, stop: float = 706) -> str:
    """The axis of time."""
    return left(14, y, "time", "dim") + "\n" + arrow(start, y, stop, y)


def svg(function: Drawing, tall: bool) -> str:
    """The whole file of a drawing."""
    height, elements = function(tall)
    width = TALL_WIDTH if tall else WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f"<style>\n{STYLE}</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="head"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="6" class="ground"/>\n' + "\n".join(elements) + "\n</svg>\n"
    )


@drawing
def copies(tall: bool) -> tuple[int, Iterable[str]]:
    """Two nodes of four ranks: a copy per rank, and one copy per node."""
    sides = []
    for is_ours, (title, call, held) in enumerate(
        [
            ("MPI: one copy per rank", "table = comm.bcast(table)", "4 copies"),
            ("mpishare: one copy per node", "table = ms.share(table)", "1 copy"),
        ]
    ):
        parts = [text(180, 22, title, "title"), text(180, 46, call, "code")]
        for node, x in enumerate((16, 184)):
            parts += [box(x, 66, 160, 132, "frame"), text(x + 80, 214, f"node {node}: {held}", "dim")]
            parts += [rank(x + 23 + 38 * place, 88, 4 * node + place) for place in range(4)]
            if is_ours:
                parts += [arrow(x + 23 + 38 * place, 102, x + 59 + 14 * place, 134) for place in range(4)]
                parts.append(box(x + 48, 136, 64, 40, "ours"))
            else:
                parts += [box(x + 7 + 38 * place, 112, 32, 80, "others") for place in range(4)]
        sides.append(moved(parts, 0, 230 * is_ours) if tall else moved(parts, 360 * is_ours, 0))
    return (460, sides) if tall else (230, [*sides, arrow(360, 14, 360, 226, head=False)])


@drawing
def which_call(tall: bool) -> tuple[int, Iterable[str]]:
    """Questions from top to bottom, and the calls beside or below each."""
    rows = [
        (
            "Do the ranks only read\nthe array?",
            "share: one rank has it\nload: it is in a file\nload(map=True): few items of a large file",
        ),
        (
            "Does each rank compute\na part of what its node reads?",
            'zeros: one array per node\npartition: own rows; scope="node"\nfence: before others read them',
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
        if tall:
            calls_x, use_x, calls_y = 30, 162, y + 74
            parts += [box(12, y, 336, 48, "others-pale", question), box(calls_x, calls_y, 318, height, "ours-pale")]
            parts += [arrow(190, y + 48, 190, calls_y - 2), left(198, y + 61, "yes", "dim")]
            no_x, no_y = 22, y + 48
        else:
            calls_x, use_x, calls_y = 304, 442, y
            parts += [box(12, y, 236, height, "others-pale", question), box(calls_x, y, 404, height, "ours-pale")]
            parts += [arrow(248, y + height / 2, 302, y + height / 2), text(273, y + height / 2 - 11, "yes", "dim")]
            no_x, no_y = 130, y + height
        for line, one in enumerate(lines):
            name, _, use = one.partition(": ")
            at = calls_y + height / 2 + LINE * (line - (len(lines) - 1) / 2)
            parts += [left(calls_x + 10, at, name, "code"), left(use_x, at, use)]
        y = calls_y + height + 26
        if number < len(rows) - 1:
            parts += [arrow(no_x, no_y, no_x, y - 2), left(no_x + 8, y - 14, "no", "dim")]
    return y - 14, parts


@drawing
def fences(tall: bool) -> tuple[int, Iterable[str]]:
    """Two ranks of a node between two fences."""
    start, unit = (62, 0.47) if tall else (90, 1.0)
    writes, reads, ends = (start + unit * x for x in (0, 186, 420))
    first, second = (start + unit * x for x in (162, 396))  # where the fences begin
    thick = 24 * unit
    parts = [text(x + thick / 2, 20, "ms.fence()", "code") for x in (first, second)]
    for number, writing, reading, again in ((0, 110, 198, 150), (1, 152, 140, 190)):
        y = 42 + 58 * number
        parts += [
            left(14, y + 20, f"rank {number}"),
            box(writes, y, writing * unit, 40, "others", "write"),
            box(reads, y, reading * unit, 40, "others-pale", "read"),
            box(ends, y, again * unit, 40, "others", "write"),
        ]
        for x, stop in ((writes + writing * unit, first), (reads + reading * unit, second)):
            parts.append(box(x, y, stop - x, 40, "none", "wait" if stop - x > 30 else "", "dim"))
    parts += [box(x, 34, thick, 116, "ours") for x in (first, second)]
    rules = "1. What others wrote can be read.", "2. What others read can be overwritten."
    if tall:
        return 242, [
            *parts,
            *(left(62, 174 + LINE * n, rule, "dim") for n, rule in enumerate(rules)),
            time(224, 62, 352),
        ]
    return 222, [*parts, text(264, 174, rules[0], "dim"), text(560, 174, rules[1], "dim"), time(204)]


@drawing
def halo(tall: bool) -> tuple[int, Iterable[str]]:
    """The rows of a plate on two nodes; the height is the row of the plate."""
    y = {-1: 44, 0: 70, 15: 148, 29: 200, 30: 226, 31: 252, 45: 304, 60: 382}  # where a row of the plate begins
    other_x, down = (120, 124) if tall else (450, 0)  # of the second node
    parts = [text(200 if tall else 220, 22, "node 0: plate[0] to plate[31]", "title")]
    parts.append(text(200 if tall else 550, 186 + down if tall else 22, "node 1: plate[0] to plate[31]", "title"))
    parts += [left(14, at, f"row {row}", "dim") for row, at in ((0, 83), (29, 213), (30, 239))]
    parts += [
        left(14, at + down, f"row {row}", "dim") for row, at in ((29, 213), (30, 239), (59, 369)) if tall or row == 59
    ]
    for node, row, stop, style, label in (
        (0, -1, 0, "others-pale", "the edge: stays 0"),
        (0, 0, 15, "ours-pale", "rank 0: rows 0 to 14"),
        (0, 15, 29, "ours-pale", "rank 1: rows 15 to 29"),
        (0, 29, 30, "ours-pale", "plate[-2]"),
        (0, 30, 31, "others-pale", "plate[-1]"),
        (1, 29, 30, "others-pale", "plate[0]"),
        (1, 30, 31, "ours-pale", "plate[1]"),
        (1, 31, 45, "ours-pale", "rank 2: rows 30 to 44"),
        (1, 45, 60, "ours-pale", "rank 3: rows 45 to 59"),
    ):
        x, top = (other_x, y[row] + down) if node else (120, y[row])
        parts.append(box(x, top, 200, y[stop] - y[row], style, label, "code" if "[" in label else ""))
    parts.append(box(other_x, y[60] + down, 200, 26, "others-pale", "the edge: stays 0"))
    if tall:
        parts.append(text(220, 272, "ms.sendrecv", "code"))
        for x, begin, end in ((346, 213, 213 + down), (332, 239 + down, 239)):  # two arrows around the corner
            parts += [
                arrow(320, begin, x, begin, head=False),
                arrow(x, begin, x, end, head=False),
                arrow(x, end, 322, end),
            ]
    else:
        parts += [text(385, 188, "ms.sendrecv", "code"), arrow(320, 213, 448, 213), arrow(450, 239, 322, 239)]
    legend = y[60] + down + 42 if tall else 344
    for at, style, words in (
        (legend, "ours-pale", "rows of the node itself"),
        (legend + 32, "others-pale", "the rows next to them"),
    ):
        parts += [box(120, at, 20, 20, style), left(150, at + 10, words)]
    return legend + (66 if tall else 78), parts


@drawing
def peak(tall: bool) -> tuple[int, Iterable[str]]:
    """The memory of the root's node while an array is shared."""
    unit, start, step, below = (150, 20, 82, 24) if tall else (190, 250, 58, 0)
    stop = 42 + 3 * step
    parts = [text(start + unit * n, 20, ("0", "1 array", "2 arrays")[n], "dim") for n in range(3)]
    parts += [arrow(start + unit * n, 32, start + unit * n, stop, head=False) for n in range(3)]
    rows = [
        ("ms.share(np.load(file))", [("others", "the root's own copy"), ("ours", "the shared array")]),
        ("ms.load(file)", [("ours", "the shared array")]),
        ("ms.load(file, map=True)", [("ours-none", "page cache only")]),
    ]
    for number, (call, bars) in enumerate(rows):
        y = 44 + step * number + below
        parts.append(left(26, y - 12, call, "code") if tall else left(14, y + 22, call, "code"))
        parts += [box(start + unit * at, y, unit, 44, style, label) for at, (style, label) in enumerate(bars)]
    dropped = "The kernel drops it\nwhen memory\nis short." if tall else "The kernel drops it\nwhen memory is short."
    parts.append(left(start + unit + 10, y + 22, dropped, "dim"))
    return stop + 12, parts


@drawing
def segment(tall: bool) -> tuple[int, Iterable[str]]:
    """From a view on a rank to the pages of the node, and the end of the last view."""
    columns = (("view", 80, 60, "base"), ("ndarray", 190, 76, "base"), ("segment", 320, 86, ""), ("map", 446, 96, ""))
    parts = [
        box(24, 284, 312, 44, "ours", "pages of the node")
        if tall
        else box(592, 28, 112, 112, "ours", "pages\nof the node")
    ]
    for number in range(2):
        if tall:
            middle = 96 + 168 * number
            parts.append(text(middle, 20, f"rank {number}"))
            for place, (name, _, _, follows) in enumerate(columns):
                y = 36 + 62 * place
                parts += [box(middle - 54, y, 108, 34, "others-pale", name), arrow(middle, y + 34, middle, y + 60)]
                parts.append(left(middle + 8, y + 47, follows, "dim"))
            continue
        y = 30 + 64 * number
        parts.append(left(14, y + 22, f"rank {number}"))
        for (name, x, width, follows), to_x in zip(columns, (190, 320, 446, 592), strict=True):
            parts += [box(x, y, width, 44, "others-pale", name), arrow(x + width, y + 22, to_x - 2, y + 22)]
            parts.append(text((x + width + to_x) / 2 - 3, y + 11, follows, "dim"))
    middle, below = (180, 190) if tall else (360, 0)
    window = "Of an MPI window it is a second map,", "and the window is freed at once."
    parts += [
        text(middle, 168 + below, ("\n" if tall else " ").join(window), "dim"),
        text(middle, 208 + below, "What is left when views are deleted", "title"),
    ]
    panels = (
        ((True, True), "ours", "in use", "Both ranks have views."),
        ((False, True), "ours", "in use", "Rank 0 has none. It notes\nthat, and sends nothing."),
        ((False, False), "ours-none", "idle", "No rank has one: kept for\na later array, or unmapped."),
    )
    for number, (views, style, label, words) in enumerate(panels):
        panel = [box(0, 0, 220, 138, "frame"), box(124, 14, 80, 64, style, label), text(110, 108, words)]
        for place, has_view in enumerate(views):
            y = 14 + 36 * place
            panel.append(box(14, y, 70, 28, "others-pale" if has_view else "none", f"rank {place}"))
            panel += [arrow(84, y + 14, 122, y + 14)] if has_view else []
        parts.append(moved(panel, 70, 228 + below + 152 * number) if tall else moved(panel, 14 + 236 * number, 228))
    return (872 if tall else 380), parts


@drawing
def transfer(tall: bool) -> tuple[int, Iterable[str]]:
    """A share on three nodes in time, along a chain."""
    return (514, transfer_down()) if tall else (280, transfer_right())


def transfer_right() -> Iterable[str]:
    """Time from left to right."""
    yield from (time(262), text(185, 30, "reserve\npages"))
    for x, label in ((92, "agree on\nthe call"), (256, "is there\nroom?"), (592, "read-only,\nagree")):
        yield from (box(x, 58, 22, 180, "ours"), text(x + 11, 30, label))
    yield text(435, 30, "chunks: each node sends on\nwhat it receives")
    for node in range(3):
        y = 70 + 58 * node
        yield left(14, y + 20, "node 0\n(root)" if node == 0 else f"node {node}")
        yield from (box(118, y + 11 * place, 134, 8, "ours-pale") for place in range(4))
        for chunk in range(6):
            x = 290 + 36 * (chunk + node)
            yield box(x, y + 4, 32, 32, "ours-pale", "…" if chunk == 5 else str(chunk + 1))
            yield from [arrow(x + 26, y + 38, x + 46, y + 60)] if node < 2 else []
        yield box(624, y + 4, 80, 32, "others-pale", "view")


def transfer_down() -> Iterable[str]:
    """Time from top to bottom."""
    yield from (arrow(350, 52, 350, 484), text(340, 500, "time", "dim"), left(14, 110, "reserve\npages"))
    for y, label in ((52, "agree on\nthe call"), (152, "is there\nroom?"), (428, "read-only,\nagree")):
        yield from (box(104, y, 232, 18, "ours"), left(14, y + 9, label))
    yield left(14, 304, "chunks:\neach node\nsends on\nwhat it\nreceives")
    for node in range(3):
        middle = 140 + 80 * node
        yield text(middle, 24, "node 0\n(root)" if node == 0 else f"node {node}")
        yield from (box(middle - 27 + 15 * place, 80, 9, 60, "ours-pale") for place in range(4))
        for chunk in range(6):
            y = 180 + 30 * (chunk + node)
            yield box(middle - 26, y, 52, 26, "ours-pale", "…" if chunk == 5 else str(chunk + 1))
            yield from [arrow(middle + 26, y + 18, middle + 53, y + 38)] if node < 2 else []
        yield box(middle - 34, 454, 68, 30, "others-pale", "view")


@drawing
def agreement(tall: bool) -> tuple[int, Iterable[str]]:
    """Three ranks of which one fails, without an agreement and with one."""
    local, width, meeting, thick, outcome, wide = (62, 120, 192, 18, 220, 132) if tall else (98, 214, 331, 28, 372, 330)
    step, high = (56, 46) if tall else (48, 36)
    middle, half = (180, 234) if tall else (360, 210)  # how far the second half is below the first
    ends = [
        "waits for rank 1, for ever",
        "raises its error",
        "raises its own error",
        "raises PeerError, with the text of rank 1",
    ]
    if tall:
        ends = [
            "waits for rank 1,\nfor ever",
            "raises its error",
            "raises its own\nerror",
            "raises PeerError,\nwith rank 1's text",
        ]
    waits, raises, own, peer = ends
    center = meeting + thick / 2
    parts = [text(middle, 22, "MPI alone", "title"), text(middle, 22 + half, "mpishare", "title")]
    parts += [
        box(meeting, 38 + half, thick, 3 * step, "ours"),
        text(center, 54 + 3 * step, "collective", "dim"),
        text(center, 54 + 3 * step + half, "agreement", "dim"),
        time(76 + 3 * step + half, local, outcome + wide) if tall else time(430),
    ]
    for number in range(3):
        fails, y = number == 1, 44 + step * number
        for top in (y, y + half):
            parts.append(left(14, top + high / 2, f"rank {number}"))
            parts.append(box(local, top, width, high, "others-pale", "local work fails" if fails else "local work"))
        if fails:
            parts.append(box(outcome, y, wide, high, "others-pale", raises))
        else:
            parts.append(box(meeting, y - 6, thick, high + 12, "others"))
            parts.append(box(outcome, y, wide, high, "none", waits))
        parts.append(box(outcome, y + half, wide, high, "ours-pale", own if fails else peer))
    return 94 + 3 * step + half, parts


def files() -> dict[str, str]:
    """The text of each file, by its path from here."""
    both = {f"{name}.svg": svg(function, tall=False) for name, function in DRAWINGS.items()}
    return both | {f"tall/{name}.svg": svg(function, tall=True) for name, function in DRAWINGS.items()}


def main() -> None:
    """Writes all of them."""
    for path, content in files().items():
        file = Path(__file__).parent / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
