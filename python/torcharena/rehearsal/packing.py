"""Takes a function to another process, for `api.rehearse`; ``calling`` unpacks it there.

By cloudpickle where that is installed; else by name where it lives in a module, or (a script,
a notebook) by its source together with what it refers to: modules by name, functions and
classes by their text, other values pickled. Code of a notebook's cell keeps its place, as
``In[3]:5``, and its source goes along, so that reports and tracebacks can say both."""

from __future__ import annotations

import ast
import builtins
import collections
import importlib
import inspect
import io
import linecache
import marshal
import os
import pickle
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["packed"]

# What pickling raises for what it cannot take, by kind of thing.
_REFUSALS = (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError)


def packed(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bytes:
    """What ``calling`` reads. Raises TypeError, which names what cannot go."""
    cells = _cells()
    found = _pickled(fn, args, kwargs, cells)
    found["path"] = [os.path.abspath(p or ".") for p in sys.path]
    found["cells"] = {
        shown: "".join(linecache.getlines(file)) for file, shown in cells.items()
    }
    for shown, text in found["cells"].items():  # for reports in this process too
        linecache.cache[shown] = (len(text), None, text.splitlines(True), shown)
    return pickle.dumps(found)


def _pickled(
    fn: Callable[..., Any], args: Any, kwargs: dict[str, Any], cells: dict[str, str]
) -> dict[str, Any]:
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pass
    else:
        return {
            "how": "pickle",
            "call": _by_cloudpickle(cloudpickle, fn, args, kwargs, cells),
        }
    if getattr(fn, "__module__", "__main__") == "__main__":
        return {"how": "source", **_Sources(fn, cells).taken(args, kwargs)}
    _dumps((args, kwargs), "the arguments")
    try:
        return {"how": "pickle", "call": pickle.dumps((fn, args, kwargs))}
    except _REFUSALS:
        raise _stuck(fn, "it is not a function of a module's top level") from None


def _stuck(fn: Any, why: str) -> TypeError:
    name = getattr(fn, "__qualname__", repr(fn))
    return TypeError(
        f"rehearse: {name} cannot be taken to another process without cloudpickle: {why}. "
        "pip install cloudpickle, or put the function in a module of its own"
    )


def _dumps(value: Any, what: str) -> bytes:
    try:
        return pickle.dumps(value)
    except _REFUSALS as error:
        raise TypeError(
            f"rehearse: {what} cannot be taken to another process ({error}); with "
            "cloudpickle installed more can (pip install cloudpickle)"
        ) from None


def _cells() -> dict[str, str]:
    """Of a notebook's cells the file that their code claims, and the name that people know;
    the newest last."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None) or {}
    ordered = sorted(numbers.items(), key=lambda item: int(item[1]))
    return {file: f"In[{number}]" for file, number in ordered}


# --- by cloudpickle -------------------------------------------------------------------------
def _by_cloudpickle(
    cloudpickle: Any, fn: Any, args: Any, kwargs: Any, cells: dict[str, str]
) -> bytes:
    def reduce(code: types.CodeType) -> Any:
        return marshal.loads, (marshal.dumps(_renamed(code, cells)),)

    class Pickler(cloudpickle.CloudPickler):
        """One that keeps the files that code is from; the child is the same Python."""

        dispatch_table: ClassVar[Any] = collections.ChainMap(
            {types.CodeType: reduce},
            getattr(cloudpickle.CloudPickler, "dispatch_table", {}),
        )

    def dumps(value: Any) -> bytes:
        file = io.BytesIO()
        Pickler(file).dump(value)
        return file.getvalue()

    try:
        return dumps((fn, args, kwargs))
    except _REFUSALS as error:
        what = _culprit(fn, args, kwargs, dumps)
        name = getattr(fn, "__qualname__", repr(fn))
        raise TypeError(
            f"rehearse: {name} cannot be taken to another process: {what}{error}"
        ) from None


def _renamed(code: types.CodeType, cells: dict[str, str]) -> types.CodeType:
    shown = cells.get(code.co_filename)
    if shown is None:
        return code
    consts = tuple(
        _renamed(one, cells) if isinstance(one, types.CodeType) else one
        for one in code.co_consts
    )
    return code.replace(co_filename=shown, co_consts=consts)


def _culprit(fn: Any, args: Any, kwargs: Any, dumps: Callable[[Any], bytes]) -> str:
    """Which of the things that a call needs cannot be pickled, as far as it can be told."""
    named = {f"argument {place + 1}": value for place, value in enumerate(args)}
    named.update({f"argument {name}": value for name, value in kwargs.items()})
    waiting, seen = [fn], {id(fn)}
    while waiting:
        this = waiting.pop()
        this = getattr(this, "__func__", this)
        if not isinstance(this, types.FunctionType):
            continue
        inner = inspect.getclosurevars(this)
        for name, value in {**inner.globals, **inner.nonlocals}.items():
            named.setdefault(f"`{name}`, which {this.__name__} uses", value)
            if isinstance(value, types.FunctionType) and id(value) not in seen:
                seen.add(id(value))
                waiting.append(value)
    functions = (types.FunctionType, types.MethodType, type)
    for functions_too in (False, True):
        for name, value in named.items():
            if isinstance(value, functions) != functions_too:
                continue
            try:
                dumps(value)
            except _REFUSALS:
                return f"{name}: "
    return ""


# --- by source -----------------------------------------------------------------------------
class _Sources:
    """The text of a function of ``__main__``, and of all it refers to there."""

    def __init__(self, fn: Any, cells: dict[str, str]) -> None:
        self.fn = fn
        self.cells = cells
        self.space = vars(sys.modules["__main__"])
        self.texts: dict[str, tuple[str, str, int]] = {}
        self.modules: dict[str, str] = {}
        self.plain: dict[str, bytes] = {}
        self.waiting: list[Any] = [fn]
        self.seen = {id(fn)}

    def taken(self, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """All that `calling` needs. Raises TypeError."""
        try:
            call = self.dumps((args, kwargs))
        except _REFUSALS:
            call = _dumps((args, kwargs), "the arguments")
        while self.waiting:
            self.take(self.waiting.pop())
        return {
            "texts": self.texts,
            "modules": self.modules,
            "plain": self.plain,
            "name": self.fn.__name__,
            "call": call,
        }

    def want(self, value: Any) -> None:
        if id(value) not in self.seen:
            self.seen.add(id(value))
            self.waiting.append(value)

    def dumps(self, value: Any) -> bytes:
        """Pickled; the classes and functions of ``__main__`` that it names are wanted."""
        want = self.want

        class Pickler(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                if getattr(value, "__module__", None) == "__main__" and isinstance(
                    value, (types.FunctionType, type)
                ):
                    want(value)
                return NotImplemented

        file = io.BytesIO()
        Pickler(file).dump(value)
        return file.getvalue()

    def take(self, this: Any) -> None:
        fn = self.fn
        if not isinstance(this, (types.FunctionType, type)):
            raise _stuck(fn, f"{this!r} is neither a function nor a class")
        if isinstance(this, types.FunctionType) and (
            this.__closure__ or this.__name__ == "<lambda>"
        ):
            raise _stuck(fn, "it is a lambda, or uses variables of a function around it")
        try:
            text, file, first = self.source(this)
        except (OSError, TypeError):
            raise _stuck(fn, f"the source of {this.__name__} is not to be had") from None
        self.texts[this.__name__] = (text, self.cells.get(file, file), first)
        for name in _names(text):
            if name not in self.space or hasattr(builtins, name):
                continue
            value = self.space[name]
            if isinstance(value, types.FunctionType):
                # Where it finds its batch size by itself, the text is of the one inside.
                value = vars(value).get("_torcharena_inner", value)
            if id(value) not in self.seen:
                self.name(name, value)

    def name(self, name: str, value: Any) -> None:
        """A global that something refers to."""
        if isinstance(value, types.ModuleType):
            self.modules[name] = value.__name__
        elif getattr(value, "__module__", None) == "__main__" and isinstance(
            value, (types.FunctionType, type)
        ):
            self.want(value)
        elif name not in self.plain:
            try:
                self.plain[name] = self.dumps(value)
            except _REFUSALS:
                why = f"it uses {name}, which cannot be pickled"
                raise _stuck(self.fn, why) from None

    def source(self, this: Any) -> tuple[str, str, int]:
        """(text, file, first line). Raises OSError, TypeError."""
        try:
            lines, first = inspect.getsourcelines(this)
            file = inspect.getsourcefile(this) or f"<{this.__name__}>"
        except (OSError, TypeError):
            if not isinstance(this, type):
                raise
            lines, first, file = self.of_class(this)
        return textwrap.dedent("".join(lines)), file, first

    def of_class(self, this: type) -> tuple[list[str], int, str]:
        """A notebook's class: Python does not know its file. The newest cell that has it."""
        for file in reversed(list(self.cells)):
            lines = linecache.getlines(file)
            try:
                tree = ast.parse("".join(lines))
            except SyntaxError:
                continue
            for node in reversed(tree.body):
                if isinstance(node, ast.ClassDef) and node.name == this.__name__:
                    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                    return lines[first - 1 : node.end_lineno], first, file
        raise OSError("source code not available")


def _names(text: str) -> set[str]:
    """Every global name that a function or class may look up, annotations and bases too."""
    names: set[str] = set()
    codes = [compile(text, "<source>", "exec")]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return names
