"""One file a family of techniques; each function with `row` above it is a row."""
