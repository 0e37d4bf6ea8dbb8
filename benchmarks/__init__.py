"""Measurements of the allocator; each module says how it is run."""
