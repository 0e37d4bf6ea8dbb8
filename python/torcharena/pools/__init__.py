"""Pools: memory that can sleep while torch's own allocator stays in charge."""
