"""Whether a jar links against other jars, without loading a class: all that its classes name must be there.

The constants of a class file name every class, method and field that its code uses. Each is looked up as the JVM would,
in the class and in what it extends; and a class that is not abstract must have every method that its supertypes leave
to it.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_ABSTRACT = 0x0400
_CLASS, _FIELD, _METHOD, _INTERFACE_METHOD = 7, 9, 10, 11
_SIZES = {3: 4, 4: 4, 8: 2, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}  # of constants that name nothing of other classes


@dataclass(slots=True)
class ClassFile:
    """What a class file says: whom it extends, what it has, and what its code names."""

    name: str
    is_abstract: bool
    supertypes: list[str]
    fields: set[tuple[str, str]] = field(default_factory=set)
    methods: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Name and descriptor of its methods, and whether each is abstract."""
    uses: set[tuple[str, str, str]] = field(default_factory=set)
    """Class, name and descriptor of all that its code names; the last two are empty for a class alone."""


def parse(data: bytes) -> ClassFile:
    """Read a class file."""
    count = struct.unpack_from(">H", data, 8)[0]
    texts: dict[int, str] = {}
    entries: dict[int, tuple[int, ...]] = {}
    at, index = 10, 1
    while index < count:
        tag = data[at]
        at += 1
        if tag == 1:
            (length,) = struct.unpack_from(">H", data, at)
            texts[index] = data[at + 2 : at + 2 + length].decode("utf-8", "surrogateescape")
            at += 2 + length
        elif tag in (5, 6):  # they take two places
            at += 8
            index += 1
        elif tag in (_FIELD, _METHOD, _INTERFACE_METHOD, 12, 15):
            entries[index] = (tag, *struct.unpack_from(">BH" if tag == 15 else ">HH", data, at))
            at += 3 if tag == 15 else 4
        else:
            if tag == _CLASS:
                entries[index] = (tag, struct.unpack_from(">H", data, at)[0])
            at += 2 if tag == _CLASS else _SIZES[tag]
        index += 1

    def class_name(index: int) -> str:
        return texts[entries[index][1]]

    flags, this, above, interfaces = struct.unpack_from(">HHHH", data, at)
    at += 8
    supertypes = [class_name(above)] if above else []
    supertypes += [class_name(i) for i in struct.unpack_from(f">{interfaces}H", data, at)]
    found = ClassFile(class_name(this), bool(flags & _ABSTRACT), supertypes)
    at += 2 * interfaces
    for kind in ("fields", "methods"):
        (members,) = struct.unpack_from(">H", data, at)
        at += 2
        for _ in range(members):
            access, name, descriptor, attributes = struct.unpack_from(">HHHH", data, at)
            at += 8
            for _ in range(attributes):
                at += 6 + struct.unpack_from(">I", data, at + 2)[0]
            if kind == "fields":
                found.fields.add((texts[name], texts[descriptor]))
            else:
                found.methods[texts[name], texts[descriptor]] = bool(access & _ABSTRACT)
    for entry in entries.values():
        if entry[0] == _CLASS and (used := _element(texts[entry[1]])):
            found.uses.add((used, "", ""))
        elif entry[0] in (_FIELD, _METHOD, _INTERFACE_METHOD) and not class_name(entry[1]).startswith("["):
            _, name, descriptor = entries[entry[2]]
            found.uses.add((class_name(entry[1]), texts[name], texts[descriptor]))
    return found


def _element(name: str) -> str:
    """The class that an array is of; nothing if it is of numbers. Other names stay as they are."""
    element = name.lstrip("[")
    return name if element == name else element[1:-1]


class ClassPath:
    """The classes of some jars, read when they are asked for. Those of the JDK count as there, with all methods."""

    def __init__(self, jars: Iterable[Path]) -> None:
        self._places: dict[str, zipfile.ZipFile] = {}
        for jar in jars:
            archive = zipfile.ZipFile(jar)
            for name in archive.namelist():
                if name.endswith(".class"):
                    self._places.setdefault(name.removesuffix(".class"), archive)
        self.find = cache(self._find)

    def _find(self, name: str) -> ClassFile | None:
        return parse(self._places[name].read(f"{name}.class")) if name in self._places else None

    def names(self) -> Iterator[str]:
        """The names of all classes."""
        return iter(self._places)

    def lineage(self, name: str) -> Iterator[ClassFile]:
        """The class and all that it extends, once each, the nearest first, as far as they are in the jars."""
        waiting, seen = [name], {name}
        while waiting:
            if found := self.find(waiting.pop(0)):
                yield found
                fresh = [above for above in found.supertypes if above not in seen]
                waiting += fresh
                seen.update(fresh)

    def has(self, owner: str, member: str, descriptor: str) -> bool:
        """Whether a class is there, and if *member* is not empty, has it or inherits it."""
        if _is_jdk(owner):
            return True
        wanted, found = (member, descriptor), list(self.lineage(owner))
        if not found or not member or member in _OF_OBJECT:
            return bool(found)
        if any(wanted in one.methods or wanted in one.fields for one in found):
            return True
        above = {name for one in found for name in one.supertypes if _is_jdk(name)}
        return descriptor.startswith("(") and member != "<init>" and not above <= _WITHOUT_OTHER_METHODS


_WITHOUT_OTHER_METHODS = {"java/lang/Object", "java/io/Serializable", "java/lang/Cloneable"}
_OF_OBJECT = {"equals", "hashCode", "toString", "getClass", "notify", "notifyAll", "wait", "clone"}


def _is_jdk(name: str) -> bool:
    return name.startswith(("com/sun/management/", "java/", "javax/", "jdk/", "sun/"))


def missing_symbols(jar: Path, others: Iterable[Path]) -> list[str]:
    """What the classes of *jar* name and neither they nor *others* have, one line each; nothing if it links."""
    own = ClassPath([jar])
    path = ClassPath([jar, *others])
    missing: set[str] = set()
    for name in own.names():
        found = own.find(name)
        assert found is not None
        for owner, member, descriptor in found.uses:
            if not path.has(owner, member, descriptor):
                missing.add(" ".join(filter(None, (owner.replace("/", "."), member, descriptor))))
        if not found.is_abstract:
            missing.update(_left_open(path, name))
    return sorted(missing)


def _left_open(path: ClassPath, name: str) -> Iterator[str]:
    """The methods that a class should have because its supertypes do not."""
    lineage = list(path.lineage(name))
    given = {method for found in lineage for method, is_abstract in found.methods.items() if not is_abstract}
    for found in lineage:
        for method, is_abstract in found.methods.items():
            if is_abstract and method not in given and method[0] not in _OF_OBJECT:
                yield f"{name.replace('/', '.')} leaves open {' '.join(method)} of {found.name.replace('/', '.')}"
