"""Test suites of projects that use PyTorch's CUDA memory, run as they are, from a checkout of
theirs: `python -m tests.clients`."""
