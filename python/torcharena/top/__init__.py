"""What every process on the GPUs holds: `torcharena top`, and metrics for Prometheus."""
