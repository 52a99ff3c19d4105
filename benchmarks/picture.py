"""Draws a kept result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.keep import RESULTS

__all__ = ["lines"]


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
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed; pip install '.[bench]' brings it")
        return
    figure = Figure(figsize=(8, 5), layout="constrained")
    scale = "log" if log else "linear"
    axes = figure.add_subplot(xscale=scale, yscale=scale, xlabel=x_label, ylabel=y_label, title=title)
    for label, y in series.items():
        axes.plot(x, y, marker="o", label=label, linewidth=2.5 if label.startswith("mpishare") else 1.2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(RESULTS / f"{name}.png", dpi=110)
