"""The reference of the Python API, built from its docstrings: docs/reference.md.

    python scripts/api_reference.py            prints it
    python scripts/api_reference.py --write    writes docs/reference.md

Needs torch where it is run, since some parts of the package subclass what torch has."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """\
# Reference, by name

Every public name of `torcharena`: its signature and its docstring, made of them by
`python scripts/api_reference.py --write`. To find one by what it does, begin with [api.md](api.md).

"""


def names() -> list[str]:
    """Public names in the order of the alphabet, whatever their case."""
    import torcharena

    public = [name for name in torcharena.__all__ if not name.startswith("__")]
    return sorted(public, key=str.lower)


def signature(thing: Any) -> str:
    """As it would be written in a stub."""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = text.replace("'", "").replace("(self, ", "(").replace("(self)", "()")
    return re.sub(r"<factory>", "...", text)


def doc(thing: Any) -> str:
    """The docstring with its code marked as Markdown has it. Raises ValueError where there is
    none."""
    text = inspect.cleandoc(getattr(thing, "__doc__", "") or "")
    if not text:
        raise ValueError(f"{thing!r} has no docstring")
    text = text.replace("``", "`")
    # A block after a line that ends in "::" is code by its indentation already.
    text = re.sub(r"::$", ":", text, flags=re.M)
    # So that a list of arguments, each a line with those that go on indented, stays one.
    out = []
    for line in text.splitlines():
        argument = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        out.append(f"- **{argument[1]}**: {argument[2]}" if argument else line)
    return "\n".join(out)


def members(thing: type) -> Iterator[str]:
    """Lines for the public methods, properties and fields of a class."""
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            text, head = inspect.getdoc(member), name
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            text, head = inspect.getdoc(member), name + signature(getattr(thing, name))
        else:
            continue
        said = " ".join((text or "").replace("``", "`").split())
        yield f"- `{head}`" + (f": {said}" if said else "")


def entry(name: str) -> str:
    import torcharena

    thing = getattr(torcharena, name)
    kind = "class " if inspect.isclass(thing) else ""
    lines = [f"## {name}", f"`{kind}torcharena.{name}{signature(thing)}`", doc(thing)]
    if inspect.isclass(thing):
        own = "\n".join(members(thing))
        if own:
            lines.append(own)
    return "\n\n".join(lines) + "\n"


def page() -> str:
    """All of it. Raises ValueError where a public name has no docstring."""
    return HEAD + "\n".join(entry(name) for name in names())


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(ROOT / "python"))
    text = page()
    if "--write" in arguments:
        PAGE.write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
