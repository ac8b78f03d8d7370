"""Pascal VOC's xml: one file for each image. Read by expat with document types and entities refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from nearsight.detection.dataset import BoxCollector, read_text, safe_relative
from nearsight.images.decode import IMAGE_SUFFIXES
from nearsight.text import printable

_MAX_BYTES, _MAX_DEPTH = 2**24, 32


@dataclass
class _Element:
    tag: str
    text: str = ""
    children: list[_Element] = field(default_factory=list)

    def find(self, tag: str) -> _Element | None:
        return next((child for child in self.children if child.tag == tag), None)

    def text_of(self, *path: str) -> str | None:
        element: _Element | None = self
        for tag in path:
            element = element.find(tag) if element is not None else None
        return None if element is None else element.text.strip()


def parse_xml(path: Path) -> _Element:
    """The tree of a small untrusted xml file: no document type, no entities, bounded size and depth."""
    shown = printable(str(path))
    content = read_text(path, _MAX_BYTES)
    top = _Element("")
    open_elements = [top]
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise ValueError(f"{shown}: document types and entities are refused; remove the <!DOCTYPE …> from the file")

    def start(tag: str, _: dict[str, str]) -> None:
        if len(open_elements) > _MAX_DEPTH:
            raise ValueError(f"{shown}: nested too deeply to be a VOC annotation")
        element = _Element(tag)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(_: str) -> None:
        open_elements.pop()

    def characters(text: str) -> None:
        open_elements[-1].text += text

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, characters
    try:
        parser.Parse(content.encode(), True)
    except expat.ExpatError as error:
        raise ValueError(f"{shown}: not valid xml ({error})") from None
    if not top.children or top.children[0].tag != "annotation":
        raise ValueError(f"{shown}: not a VOC annotation (its root is not <annotation>)")
    return top.children[0]


def read_voc(root: Path, files: list[Path], classes: tuple[str, ...] | None = None) -> BoxCollector:
    """Annotation files as one set. Classes are those that occur, in alphabetical order, unless given."""
    trees = [(path, parse_xml(path)) for path in sorted(files)]
    occurring = sorted({_class_name(path, index, obj) for path, tree in trees for index, obj in _objects(tree)})
    collector = BoxCollector(root, occurring if classes is None else classes)
    label_of = {name: label for label, name in enumerate(collector.classes)}
    for number, (path, tree) in enumerate(trees, start=1):
        shown = printable(str(path))
        size = (_whole(tree, shown, "size", "height"), _whole(tree, shown, "size", "width"))
        image = collector.add_image(_image_of(root, path, tree), size, number)
        for index, obj in _objects(tree):
            where = f"{shown}, object {index}"
            name = _class_name(path, index, obj)
            if name not in label_of:
                raise ValueError(f"{where}: class {printable(name)!r} does not occur in the training split")
            left, top, right, bottom = (
                _number(obj, where, "bndbox", side) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            # VOC counts pixels from 1 and includes the last: its first pixel column spans 0 to 1 here.
            collector.add_box(
                image,
                (left - 1, top - 1, right, bottom),
                label_of[name],
                where,
                crowd=obj.text_of("difficult") == "1",
            )
    return collector


def _objects(tree: _Element) -> list[tuple[int, _Element]]:
    return list(enumerate((child for child in tree.children if child.tag == "object"), start=1))


def _class_name(path: Path, index: int, obj: _Element) -> str:
    name = obj.text_of("name")
    if not name:
        raise ValueError(f"{printable(str(path))}, object {index}: has no name")
    return name


def _number(element: _Element, where: str, *path: str) -> float:
    text = element.text_of(*path)
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(f"{where}: {'/'.join(path)} must be a number, not {printable(repr(text))}") from None


def _whole(tree: _Element, where: str, *path: str) -> int:
    value = _number(tree, where, *path)
    if not 1 <= value < 2**31 or value != int(value):
        raise ValueError(f"{where}: {'/'.join(path)} must be a positive whole number, not {value:g}")
    return int(value)


def _image_of(root: Path, path: Path, tree: _Element) -> str:
    """The image with the annotation's own name, in VOC's folder or beside it; else the one that <filename> names."""
    relative = path.parent.relative_to(root)
    folders = [relative.parent / "JPEGImages", relative.parent / "images", relative]
    for folder in folders:
        for suffix in IMAGE_SUFFIXES:
            for spelled in (suffix, suffix.upper()):
                if (root / folder / (path.stem + spelled)).is_file():
                    return str(folder / (path.stem + spelled))
    named = tree.text_of("filename")
    if named:
        for folder in folders:
            candidate = folder / safe_relative(named, printable(str(path)))
            if (root / candidate).is_file():
                return str(candidate)
    raise ValueError(f"{printable(str(path))}: its image {printable(named or path.stem)!r} is not there")
