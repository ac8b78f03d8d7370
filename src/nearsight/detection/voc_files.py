"""Pascal VOC's xml: one file for each image. Read by expat with document types and entities refused."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from nearsight.detection.dataset import BoxCollector, safe_relative
from nearsight.images.formats import IMAGE_SUFFIXES
from nearsight.text import printable
from nearsight.untrusted.files import read_text
from nearsight.untrusted.limits import LABELS_BYTES, XML_DEPTH, XML_ELEMENTS


def parse_xml(path: Path) -> Element:
    """The tree of a small untrusted xml file. Without a document type it cannot declare entities."""
    shown = printable(str(path))
    tree, parser = TreeBuilder(), expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise ValueError(f"{shown}: document types and entities are refused; remove the <!DOCTYPE …> from the file")

    depth = elements = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, elements
        depth, elements = depth + 1, elements + 1
        if depth > XML_DEPTH or elements > XML_ELEMENTS:
            what = f"nested more than {XML_DEPTH} deep" if depth > XML_DEPTH else f"more than {XML_ELEMENTS} elements"
            raise ValueError(f"{shown}: {what}")
        tree.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        tree.end(tag)

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, tree.data
    text = read_text(path, LABELS_BYTES)
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise ValueError(f"{shown}: not valid xml ({error})") from None
    root = tree.close()
    if root.tag != "annotation":
        raise ValueError(f"{shown}: not a VOC annotation (its root is not <annotation>)")
    return root


def read_voc(root: Path, files: list[Path], classes: tuple[str, ...] | None = None) -> BoxCollector:
    """Annotation files as one set. Classes are those that occur, in alphabetical order, unless given."""
    trees = {path: parse_xml(path) for path in sorted(files)}
    objects = {path: _objects(path, tree) for path, tree in trees.items()}
    occurring = sorted({name for own in objects.values() for _, name, _ in own})
    collector = BoxCollector(root, occurring if classes is None else classes)
    label_of = {name: label for label, name in enumerate(collector.classes)}
    for number, (path, tree) in enumerate(trees.items(), start=1):
        shown = printable(str(path))
        size = (_whole(tree, shown, "size/height"), _whole(tree, shown, "size/width"))
        image = collector.add_image(_image_of(root, path, tree), size, number)
        for where, name, element in objects[path]:
            if name not in label_of:
                raise ValueError(f"{where}: class {printable(name)!r} does not occur in the training split")
            left, top, right, bottom = (
                _number(element, where, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")
            )
            # VOC counts pixels from 1 and includes the last: its first pixel column spans 0 to 1 here.
            corners = (left - 1, top - 1, right, bottom)
            collector.add_box(image, corners, label_of[name], where, crowd=_text(element, "difficult") == "1")
    return collector


def _objects(path: Path, tree: Element) -> list[tuple[str, str, Element]]:
    """Of each object, how messages call it, and its class."""
    objects = []
    for index, element in enumerate(tree.findall("object"), start=1):
        where, name = f"{printable(str(path))}, object {index}", _text(element, "name")
        if not name:
            raise ValueError(f"{where}: has no name")
        objects.append((where, name, element))
    return objects


def _text(element: Element, path: str) -> str:
    """The text at a path below an element; empty where there is none."""
    return (element.findtext(path) or "").strip()


def _number(element: Element, where: str, path: str) -> float:
    text = _text(element, path)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where}: {path} must be a number, not {printable(repr(text))}") from None


def _whole(element: Element, where: str, path: str) -> int:
    value = _number(element, where, path)
    if not 1 <= value < 2**31 or value != int(value):
        raise ValueError(f"{where}: {path} must be a positive whole number, not {value:g}")
    return int(value)


def _image_of(root: Path, path: Path, tree: Element) -> str:
    """The image with the annotation's own name, in VOC's folder or beside it; else the one that <filename> names."""
    relative = path.parent.relative_to(root)
    folders = [relative.parent / "JPEGImages", relative.parent / "images", relative]
    for folder in folders:
        for suffix in IMAGE_SUFFIXES:
            for spelled in (suffix, suffix.upper()):
                if (root / folder / (path.stem + spelled)).is_file():
                    return str(folder / (path.stem + spelled))
    named = _text(tree, "filename")
    if named:
        for folder in folders:
            candidate = folder / safe_relative(named, printable(str(path)))
            if (root / candidate).is_file():
                return str(candidate)
    raise ValueError(f"{printable(str(path))}: its image {printable(named or path.stem)!r} is not there")
