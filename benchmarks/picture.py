"""Draws a kept result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.keep import RESULTS

__all__ = ["bars", "lines"]


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
    """A line for each of `series`, on logarithmic axes or plain ones, as results/NAME.png; needs matplotlib."""
    figure = _figure()
    if figure is None:
        return
    scale = "log" if log else "linear"
    axes = figure.add_subplot(xscale=scale, yscale=scale, xlabel=x_label, ylabel=y_label, title=title)
    for label, y in series.items():
        axes.plot(x, y, marker="o", label=label, linewidth=2.5 if label.startswith("mpishare") else 1.2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


def bars(name: str, series: Mapping[str, Mapping[str, float]], x_label: str, title: str) -> None:
    """For each name in each of `series` a bar, as results/NAME.png; needs matplotlib."""
    figure = _figure()
    if figure is None:
        return
    axes = figure.add_subplot(xlabel=x_label, title=title)
    names = list(next(iter(series.values())))
    height = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        places = [place + number * height for place in range(len(names))]
        axes.barh(places, [values[item] for item in names], height, label=label)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize="small")
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


def _figure() -> Any:
    """A new figure, None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed; pip install '.[bench]' brings it")
        return None
    return Figure(figsize=(8, 5), layout="constrained")
