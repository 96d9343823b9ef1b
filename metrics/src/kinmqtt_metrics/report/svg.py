"""Matplotlib's SVG, made fit for the page: colours are the page's variables, fonts its own, and ids unique."""

from __future__ import annotations

import re
from typing import Final

from kinmqtt_metrics.report import colours

_COLOUR: Final = re.compile("|".join(colours.NAMES))
_ID: Final = re.compile(r'(\bid="|url\(#|xlink:href="#)')
_FONT: Final = re.compile(r"font: ((?:\w+ )*?)([0-9.]+px) [^;\"]*")
_HEAD: Final = re.compile(r"^.*?<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)


def svg_for_page(svg: str, name: str, says: str) -> str:
    match = _HEAD.match(svg)
    assert match is not None
    body = svg[match.end() :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # Only what matplotlib wrote into tags is changed, never a name that stands between them.
    body = re.sub(r"<[^>]+>", lambda tag: _tag(tag[0], name), body)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    return f'<svg viewBox="{match[1]}" role="img" aria-label="{says}">{body}'


def _tag(tag: str, prefix: str) -> str:
    tag = _COLOUR.sub(lambda found: f"var(--{colours.NAMES[found[0]]})", tag)
    tag = (
        _FONT.sub(r"font-size: \2; font-weight: inherit", tag)
        if "bold" not in tag
        else _FONT.sub(r"font-size: \2; font-weight: 600", tag)
    )
    return _ID.sub(rf"\g<1>{prefix}-", tag)
