"""What programs ask of cuDNN's convolutions, and what it answers: ``python -m
benchmarks.convolutions``."""
