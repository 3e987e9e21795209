"""Plots as SVG that stands inside an HTML page: the page's font and colours, no address, no id used twice.

matplotlib draws with placeholder colours, which become the page's CSS variables; so one drawing serves a light, a
dark and a printed page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

SMALL_INCHES, WIDE_INCHES = (3.5, 2.3), (4.6, 2.7)
N_BINS = 36
MOST_POINTS = 300
_COLOURS = {"#010101": "var(--ink)", "#020202": "var(--rule)", "#030303": "var(--mark)"}
_INK, _RULE, _MARK = _COLOURS
_SERIES = [f"#0401{i:02x}" for i in range(16)]
_COLOURS |= {colour: f"var(--line-{i % 7})" for i, colour in enumerate(_SERIES)}
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (3, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), "-")


@dataclass(frozen=True)
class Plot:
    """A drawing, and in words what it shows."""

    svg: Markup
    caption: str


def histogram(name: str, lengths: np.ndarray, caption: str) -> Plot:
    """Rows by number of ids; `lengths` must not be empty."""
    figure, axes = _axes(SMALL_INCHES)
    # no bin narrower than one id, else some must be empty
    n_bins = max(1, min(N_BINS, int(lengths.max()) - int(lengths.min()) + 1))
    heights, edges = np.histogram(lengths, bins=n_bins)
    axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=_MARK, linewidth=0)
    middle = float(np.percentile(lengths, 50, method="nearest"))
    axes.axvline(middle, color=_INK, linewidth=1, linestyle=(0, (4, 2)))
    right = middle > (edges[0] + edges[-1]) / 2
    axes.annotate(
        f"median {middle:,.0f}",
        (middle, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if right else 4, 2),
        textcoords="offset points",
        ha="right" if right else "left",
        color=_INK,
    )
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel(f"{name} ids")
    axes.set_ylabel("rows")
    words = f"{len(lengths):,} rows, median {middle:,.0f}, largest {int(lengths.max()):,}"
    return _plot(figure, f"lengths-{name}", f"Histogram of {name} ids: {words}", caption)


def loss_curve(records: Sequence[Mapping[str, Any]], caption: str) -> Plot:
    """Training loss by optimiser step, and the loss of held-out rows where it was measured."""
    figure, axes = _axes(WIDE_INCHES)
    shown = thinned(records)
    axes.plot([r["step"] + 1 for r in shown], [r["loss"] for r in shown], color=_SERIES[0], linewidth=1.6)
    held_out = [r for r in records if r.get("held_out")]
    if held_out:
        losses = [r["held_out"]["loss"] for r in held_out]
        axes.plot([r["step"] + 1 for r in held_out], losses, "s", color=_SERIES[3], markersize=6)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("loss")
    words = f"from {records[0]['loss']:.3f} to {records[-1]['loss']:.3f} in {records[-1]['step'] + 1} steps"
    return _plot(figure, "loss", f"Training loss {words}", caption)


def accuracy_curves(records: Sequence[Mapping[str, Any]], caption: str) -> Plot:
    """Accuracy of each draft step by optimiser step; each line ends in its number."""
    figure, axes = _axes(WIDE_INCHES)
    shown = thinned(records)
    steps = [r["step"] + 1 for r in shown]
    n_draft = len(records[-1]["accuracy"])
    for i in range(n_draft):
        accuracy = [r["accuracy"][i] for r in shown]
        axes.plot(steps, accuracy, color=_SERIES[i], linestyle=_DASHES[i % len(_DASHES)], linewidth=1.5)
    axes.set_ylim(0, max(0.05, *(max(r["accuracy"]) for r in shown)) * 1.1)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("accuracy")
    last = records[-1]["accuracy"]
    for i, height in enumerate(_apart(last, axes.get_ylim()[1] / 13)):
        axes.annotate(
            str(i + 1), (steps[-1], height), xytext=(5, 0), textcoords="offset points", va="center", color=_SERIES[i]
        )
    words = ", ".join(f"draft step {i + 1}: {value:.2f}" for i, value in enumerate(last))
    return _plot(figure, "accuracy", f"Accuracy by draft step, at the end {words}", caption)


def thinned(records: Sequence[Mapping[str, Any]], most: int = MOST_POINTS) -> list[Mapping[str, Any]]:
    """At most `most` of the records, evenly chosen, the first and the last among them."""
    if len(records) <= most:
        return list(records)
    return [records[round(i * (len(records) - 1) / (most - 1))] for i in range(most)]


def _apart(heights: Sequence[float], least: float) -> list[float]:
    """Heights moved downwards where needed, so that labels at them do not cover each other."""
    moved = list(heights)
    order = sorted(range(len(moved)), key=lambda i: -moved[i])
    for above, below in pairwise(order):
        moved[below] = min(moved[below], moved[above] - least)
    # those at the bottom are pushed up again, from the floor
    floor = 0.0
    for i in reversed(order):
        moved[i] = max(moved[i], floor)
        floor = moved[i] + least
    return moved


def _axes(size_inches: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size_inches, layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_RULE)
    axes.tick_params(colors=_INK, length=3)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.grid(axis="y", color=_RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.locator_params(axis="y", nbins=5)
    return figure, axes


def _plot(figure: Figure, name: str, title: str, caption: str) -> Plot:
    """The drawing as an `svg` element with a title, its ids begun with `name`."""
    written = io.StringIO()
    # without any of these there is no metadata element, which would be of another namespace
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    svg = written.getvalue()
    body = re.sub(r"<style[^>]*>.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', body)
    assert box is not None
    body = body[body.index(">") + 1 :].replace("xlink:href", "href")
    body = re.sub(r"font-family: [^;\"]*; ?", "", body)
    # matplotlib numbers its groups anew in every drawing
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body).replace("url(#", f"url(#{name}-")
    for colour, variable in _COLOURS.items():
        body = body.replace(colour, variable)
    label = escape(title)
    head = f'<svg {box.group()} role="img" aria-labelledby="{name}-title"><title id="{name}-title">{label}</title>'
    return Plot(Markup(head + re.sub(r"\n\s*", "\n", body)), caption)
