"""Python imports this as it starts, in every process of a rehearsal: its folder stands first
on PYTHONPATH. The machine's own sitecustomize, which it hides, runs first."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _hidden() -> None:
    others = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    _hidden()
except Exception as error:  # as Python itself does
    print(f"Error in sitecustomize: {type(error).__name__}: {error}", file=sys.stderr)
if "TORCHARENA_REHEARSAL_JOB" in os.environ:
    try:
        from torcharena.rehearsal import child
    except ImportError:  # another Python, which has no torcharena
        pass
    else:
        child.prepare()
