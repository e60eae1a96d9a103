"""Figures as files, and as SVG that many of which may stand in one page."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from sigmatrace.export.report.shape import Shape
from sigmatrace.export.report.style import styled

IMAGE_DPI = 150
"""Of what is an image within an SVG."""
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def save(shape: Shape, folder: Path, dpi: int) -> str:
    """Draw a figure, write it as PNG and SVG, and return the SVG for a page.

    Args:
        shape: The figure.
        folder: Of the files.
        dpi: Resolution of the PNG.
    """
    import matplotlib

    with styled():
        figure = shape.make()
        figure.savefig(folder / f"{shape.name}.png", dpi=dpi)
        written = BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": shape.name}):  # ids are random without
            figure.savefig(written, format="svg", dpi=IMAGE_DPI, metadata={"Date": None})
    (folder / f"{shape.name}.svg").write_bytes(written.getvalue())
    return inline(written.getvalue(), shape)


def inline(written: bytes, shape: Shape) -> str:
    """Return an SVG file as an element of a page: named, described, and with ids of its own."""
    Xml.register_namespace("", _SVG)
    Xml.register_namespace("xlink", _XLINK)
    root = Xml.fromstring(written)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for one in root.iter():
        _rename(one, shape.name)
    wide = float(root.attrib.pop("width").removesuffix("pt")) * 4 / 3
    del root.attrib["height"]
    ids = [f"{shape.name}-title", f"{shape.name}-text"]
    root.attrib.update({"role": "img", "aria-labelledby": " ".join(ids)})
    root.attrib["style"] = f"max-width:{wide:.0f}px"
    for at, (tag, text) in enumerate((("title", shape.title), ("desc", shape.text))):
        said = Xml.Element(f"{{{_SVG}}}{tag}", {"id": ids[at]})
        said.text = text
        root.insert(at, said)
    return Xml.tostring(root, encoding="unicode")


def _rename(one: Any, name: str) -> None:
    """Put a figure's name before its ids, and where they are referred to."""
    for key, value in one.attrib.items():
        if key == "id":
            one.attrib[key] = f"{name}-{value}"
        elif key.rpartition("}")[2] == "href" and value.startswith("#"):
            one.attrib[key] = f"#{name}-{value[1:]}"
        elif "url(#" in value:
            one.attrib[key] = _REFERENCE.sub(rf"url(#{name}-\1)", value)
