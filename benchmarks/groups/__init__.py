"""The groups of ``python -m benchmarks``, and the report of what they found.

A group is a module with a ``run``, which starts its children (``X_player``, ``X_child``)."""
