"""Draws a kept result: one question a picture, ours in one colour everywhere, at most six lines, named at the end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.keep import RESULTS

__all__ = ["bars", "lines"]

_OURS = "#d55e00"
_RIVALS = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#666666")
"""Colours that the colour-blind can tell apart: M. Okabe, K. Ito, "Color universal design", 2008, and a grey."""
_MARKERS = "so^vDP"
_MAX_LINES = 6
_APART = 0.055
"""How far apart two names are at least, as a part of the height."""
_ROOM = 0.09
"""How far apart the names of two sizes are at least, as a part of the width."""
_FEW = 3
"""Up to so many times the least value, a plain axis has more ticks than a logarithmic one."""
_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti")


def lines(
    name: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    title: str,
    *,
    log: bool = True,
) -> None:
    """A line for each of `series`, as results/NAME.png; needs matplotlib.

    The axes are plain, or logarithmic, but for y where the largest value is less than a few times the least one.
    """
    figure = _figure(9, 5)
    if figure is None:
        return
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
    series = {way: y for way, y in series.items() if any(map(math.isfinite, y))}
    finite = [value for y in series.values() for value in y if math.isfinite(value)]
    log_y = log and max(finite) > _FEW * min(finite)
    if log:
        axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    axes.set_title(title, loc="left")
    ends, rivals = dict[str, tuple[float, float, str]](), iter(_RIVALS)
    for number, (way, y) in enumerate(_chosen(series).items()):
        is_ours = _is_ours(way)
        colour = _OURS if is_ours else next(rivals)
        is_whole = all(map(math.isfinite, y))  # else points alone, which may lie on a line
        style = ("--" if is_ours and _OURS in [colour for *_, colour in ends.values()] else "-") if is_whole else ""
        marks = {"marker": _MARKERS[number], "markersize": 5 if is_whole else 11}
        width = 2.5 if is_ours else 1.5
        axes.plot(x, y, style, color=colour, linewidth=width, fillstyle="full" if is_whole else "none", **marks)
        ends[way] = *[point for point in zip(x, y, strict=True) if math.isfinite(point[1])][-1], colour
    shown = _spaced(x) if log else x
    names = {value: _size(value) if "bytes" in x_label else f"{value:g}" for value in shown}
    axes.set_xticks(x, [names.get(value, "") for value in x])
    if log_y:
        from matplotlib.ticker import FuncFormatter, LogLocator

        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    if x[0] > x[-1]:
        axes.invert_xaxis()
    axes.grid(alpha=0.3)
    for way, place in _places(axes, {way: y for way, (_, y, _) in ends.items()}, log=log_y).items():
        *end, colour = ends[way]
        leader = {"arrowstyle": "-", "color": colour, "alpha": 0.5, "relpos": (0, 0.5)}  # to its left end, across none
        text = {"textcoords": axes.transAxes, "color": colour, "va": "center"}
        axes.annotate(way, end, (1.04, place), arrowprops=leader, **text)
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


def bars(name: str, series: Mapping[str, Mapping[str, float]], x_label: str, title: str) -> None:
    """For each of `series` a panel with a bar for each of its names, as results/NAME.png; needs matplotlib."""
    most = max(len(values) for values in series.values())
    figure = _figure(9, 1.2 + 0.32 * most)
    if figure is None:
        return
    figure.suptitle(title, x=0.01, ha="left")
    panels = figure.subplots(1, len(series), squeeze=False)[0]
    is_shared = len({frozenset(values) for values in series.values()}) == 1
    for number, (axes, (way, values)) in enumerate(zip(panels, series.items(), strict=True)):
        first = next(iter(series.values())) if is_shared else values
        names = sorted(values, key=first.__getitem__)
        if len(series) > 1:
            axes.set_title(way, loc="left", fontsize=10)
        colours = [_OURS if _is_ours(item) else _RIVALS[0] for item in names]
        drawn = axes.barh(names, [values[item] for item in names], 0.7, color=colours)
        axes.bar_label(drawn, fmt=_figure_of, padding=3, fontsize=9)
        axes.margins(x=0.2)
        axes.set_xlabel(x_label)
        axes.invert_yaxis()
        axes.tick_params(labelleft=number == 0 or not is_shared)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


def _is_ours(way: str) -> bool:
    return way.startswith(("mpishare", "kernels"))


def _chosen(series: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Ours, and of the others those with the least values, so that there are six at most."""
    others = sorted((way for way in series if not _is_ours(way)), key=lambda way: _mean(series[way]))
    room = _MAX_LINES - (len(series) - len(others))
    return {way: y for way, y in series.items() if _is_ours(way) or way in others[: max(room, 0)]}


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(math.log(max(value, 1e-9)) for value in values if math.isfinite(value))


def _spaced(x: Sequence[float]) -> list[float]:
    """The last of `x`, and those before it whose names have room on a logarithmic axis."""
    result = [x[-1]]
    for value in reversed(x):
        if abs(math.log(result[-1] / value)) > _ROOM * abs(math.log(x[-1] / x[0])):
            result.append(value)
    return result


def _places(axes: Any, ends: Mapping[str, float], *, log: bool) -> dict[str, float]:
    """Where the names stand beside the ends of their lines, as parts of the height, none on another."""
    low, high = (math.log(limit) if log else limit for limit in axes.get_ylim())
    height = {way: ((math.log(y) if log else y) - low) / (high - low) for way, y in ends.items()}
    result: dict[str, float] = {}
    for way in sorted(height, key=lambda way: height[way]):
        result[way] = max(height[way], max(result.values(), default=-1.0) + _APART)
    over = max(result.values()) - 1.0
    return {way: place - max(over, 0.0) for way, place in result.items()}


def _figure_of(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _size(nbytes: float) -> str:
    power = int(math.log2(nbytes)) // 10 if nbytes >= 1 else 0
    return f"{nbytes / 1024**power:g} {_PREFIXES[power]}B"


def _figure(width: float, height: float) -> Any:
    """A new figure on white, which a dark page shows too; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed; pip install '.[bench]' brings it")
        return None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")
