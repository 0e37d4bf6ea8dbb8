"""The largest batch that runs: `find_batch_size`."""
