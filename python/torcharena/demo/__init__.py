"""`torcharena demo`: a small GPT on each allocator. `command` starts and compares, `train` runs."""
