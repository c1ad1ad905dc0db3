"""Small plots as SVG text: lines through points. Colours and fonts are the page's, by CSS class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 8
"""How many classes `c0`, `c1`, ... the page must have a colour for."""

_WIDTH, _HEIGHT = 560, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 34, 16, 64
_ROW = 15  # the least height of a row with a name


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()
    """What is written at each point; nothing if empty."""
    widths: Sequence[tuple[float, float]] = ()
    """From where to where each point may lie along the x axis; shown as a bar if not empty."""


@dataclass(frozen=True, slots=True)
class Axis:
    """How numbers become places, and which are marked."""

    label: str
    logarithmic: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    """Marks with their texts; chosen by themselves if empty."""

    def scale(self, value: float) -> float:
        """The place of *value* in units of this axis."""
        return math.log10(max(value, 1e-12)) if self.logarithmic else value

    def marks(self, least: float, most: float) -> list[tuple[float, str]]:
        """Marks between two values."""
        if self.ticks:
            return [(at, text) for at, text in self.ticks if least <= at <= most]
        if self.logarithmic:
            exponents = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
            return [(at, short(at)) for e in exponents if least <= (at := 10.0**e) <= most]
        step = nice_step(most - least)
        first = math.ceil(least / step)
        return [(n * step, short(n * step)) for n in range(first, math.floor(most / step + 1e-9) + 1)]


def nice_step(span: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that makes about five marks."""
    raw = max(span, 1e-12) / 5
    power: float = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)


def short(value: float, space: str = "") -> str:
    """A number with few characters: 1500 as 1.5k, with *space* before a unit."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{space}{unit}"
    return f"{value:.4g}{space}"


def line_plot(title: str, x: Axis, y: Axis, all_series: Sequence[Series]) -> str:
    """A plot of lines, with *title* for those who cannot see it."""
    points = [point for series in all_series for point in series.points]
    ends = [end for series in all_series for width in series.widths for end in width]
    x_span, y_span = _span([p[0] for p in points] + ends, x), _span([p[1] for p in points], y)
    canvas = _Canvas(x, y, x_span, y_span)
    parts = [*_frame(canvas)]
    for number, series in enumerate(all_series):
        at = [canvas.of(*point) for point in series.points]
        colour = f"c{number % COLOURS}"
        parts.append(f'<polyline class="line {colour}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in at)}"/>')
        for (low, high), (_, y_value) in zip(series.widths, series.points, strict=False):
            (left, b), (right, _) = canvas.of(low, y_value), canvas.of(high, y_value)
            parts.append(f'<line class="width {colour}" x1="{left:.1f}" y1="{b:.1f}" x2="{right:.1f}" y2="{b:.1f}"/>')
        for index, (a, b) in enumerate(at):
            text = series.labels[index] if series.labels else ""
            parts.append(f'<circle class="dot {colour}" cx="{a:.1f}" cy="{b:.1f}" r="4"/>')
            if text:
                parts.append(f'<text class="small" x="{a + 6:.1f}" y="{b - 7:.1f}">{escape(text)}</text>')
    return _svg(title, parts)


@dataclass(frozen=True, slots=True)
class Band:
    """One row of a plot of what happens when."""

    name: str
    parts: Sequence[tuple[float, float, float]]
    """From where to where, and how strongly, from 0 to 1."""


def band_plot(title: str, x: Axis, most: float, bands: Sequence[Band]) -> str:
    """A plot with a row for each band, the first on top, over an axis from 0 to *most*; as high as it needs to be."""
    rows = len(bands) or 1
    canvas = _Canvas(x, Axis(""), (0.0, most), (0.0, float(rows)), height=max(_HEIGHT, rows * _ROW + _TOP + _BOTTOM))
    parts = _vertical_grid(canvas)
    for row, band in enumerate(bands):
        (_, top), (_, bottom) = canvas.of(0.0, rows - row), canvas.of(0.0, rows - row - 1.0)
        for start, end, strength in band.parts:
            (left, _), (right, _) = canvas.of(start, 0.0), canvas.of(end, 0.0)
            parts.append(
                f'<rect class="band c0" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
                f'height="{bottom - top - 1:.1f}" fill-opacity="{min(strength, 1.0):.2f}"/>'
            )
        middle = (top + bottom) / 2 + 4
        parts.append(f'<text class="small end" x="{_LEFT - 6}" y="{middle:.1f}">{escape(band.name)}</text>')
    return _svg(title, parts, canvas.height)


def _span(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """From which value to which an axis goes."""
    if axis.logarithmic:
        above = [value for value in values if value > 0] or [1.0]
        return 10.0 ** math.floor(math.log10(min(above))), 10.0 ** max(
            math.ceil(math.log10(max(above))), math.floor(math.log10(min(above))) + 1
        )
    if axis.ticks:
        return min(at for at, _ in axis.ticks), max(at for at, _ in axis.ticks)
    most = max(values, default=1.0) or 1.0
    step = nice_step(most)
    return 0.0, math.ceil(most * 1.02 / step) * step


@dataclass(frozen=True, slots=True)
class _Canvas:
    """Where things are drawn."""

    x: Axis
    y: Axis
    x_span: tuple[float, float]
    y_span: tuple[float, float]
    height: int = _HEIGHT

    def of(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn."""
        return (
            _LEFT + _share(self.x, self.x_span, x) * (_WIDTH - _LEFT - _RIGHT),
            self.height - _BOTTOM - _share(self.y, self.y_span, y) * (self.height - _TOP - _BOTTOM),
        )


def _share(axis: Axis, span: tuple[float, float], value: float) -> float:
    first, last = axis.scale(span[0]), axis.scale(span[1])
    return min(max((axis.scale(value) - first) / (last - first), 0.0), 1.0)


def _frame(canvas: _Canvas) -> list[str]:
    parts = []
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for at, text in canvas.y.marks(*canvas.y_span):
        _, b = canvas.of(canvas.x_span[0], at)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{b:.1f}" x2="{right}" y2="{b:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 8}" y="{b + 5:.1f}">{escape(text)}</text>')
    parts += _vertical_grid(canvas)
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text class="label middle" x="16" y="{middle}" transform="rotate(-90 16 {middle})">'
        f"{escape(canvas.y.label)}</text>"
    )
    return parts


def _vertical_grid(canvas: _Canvas) -> list[str]:
    """The marks of the horizontal axis, with lines through the plot."""
    parts = []
    right, bottom = _WIDTH - _RIGHT, canvas.height - _BOTTOM
    for at, text in canvas.x.marks(*canvas.x_span):
        a, _ = canvas.of(at, canvas.y_span[0])
        parts.append(f'<line class="grid" x1="{a:.1f}" y1="{_TOP}" x2="{a:.1f}" y2="{bottom}"/>')
        parts.append(f'<text class="tick middle" x="{a:.1f}" y="{bottom + 25}">{escape(text)}</text>')
    parts.append(
        f'<text class="label middle" x="{(_LEFT + right) / 2}" y="{canvas.height - 8}">{escape(canvas.x.label)}</text>'
    )
    return parts


def _svg(title: str, parts: Sequence[str], height: int = _HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
