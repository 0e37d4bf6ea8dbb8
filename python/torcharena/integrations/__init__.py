"""Figures where people already look: progress bars, logs, TensorBoard, Prometheus, and
callbacks for transformers' Trainer and Lightning.

Each module imports its library when it is imported itself, and nothing here is imported by
``import torcharena``."""
