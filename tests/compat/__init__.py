"""Rows of docs/compatibility.md: what users run, under the arena and under torch's own
allocator. See __main__.py."""
