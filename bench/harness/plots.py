"""A page of HTML with plots that needs nothing else: no network, no scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from safekeeper.bench.harness import svg


def page(title: str, body: Iterable[str]) -> str:
    """The page whose parts are *body*."""
    style = (resources.files("safekeeper.bench.harness") / "report.css").read_text()
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>safekeeper bench: {escape(title)}</title><style>{style}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{''.join(body)}</main></body></html>\n"
    )


def legend(names: Sequence[str]) -> str:
    """Which colour is whose."""
    items = (f'<li><span class="key c{n % svg.COLOURS}"></span>{escape(name)}</li>' for n, name in enumerate(names))
    return f'<ul class="legend">{"".join(items)}</ul>'


def figure(title: str, plot: str, caption: str) -> str:
    """A plot with its title and a line below it."""
    return f"<figure><h2>{escape(title)}</h2>{plot}<figcaption>{escape(caption)}</figcaption></figure>"


def figures(found: Iterable[str]) -> str:
    """Figures side by side where there is room."""
    return f'<div class="plots">{"".join(found)}</div>'
