"""Other people's libraries: figures in progress bars, logs and TensorBoard, callbacks for
transformers' Trainer and Lightning; the arena lent to CuPy and RMM; pools for SGLang and vLLM.

Each module imports its library when it is imported itself, and nothing here is imported by
``import torcharena``."""
