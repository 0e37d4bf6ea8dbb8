"""What can be run, by name: the programs of benchmarks/programs, the five loops, torch's two
allocators and the arena."""

from __future__ import annotations

from .building import ROOT

__all__ = ["ALLOCATORS", "ALONE", "LOOPS", "PROGRAMS", "RANKS", "command"]

ALLOCATORS = ("native", "expandable", "arena")
# In benchmarks/training.py; as programs they are loop:NAME.
LOOPS = ("gpt2_varlen", "bert_amp", "resnet50_multiscale", "llama_lora", "moe")
PROGRAMS = (
    "detector_boxes",
    "lstm_words",
    "dit_guidance",
    "trainer_causal",
    "speech_ctc",
    "dqn_replay",
    *(f"loop:{name}" for name in LOOPS),
    "unet_denoise",
    "vit_ema",
    "gnn_pool",
    "compiled_gpt",
)
# They set cudnn.benchmark: who runs beside them moves their choice.
ALONE = ("unet_denoise", "dqn_replay")
# Programs that are several processes, each on a GPU of its own.
RANKS = {"shard_pair": 2}


def command(program: str) -> list[str]:
    """Of a program: ``loop:moe`` is loop.py with the argument moe."""
    name, _, variant = program.partition(":")
    script = str(ROOT / "benchmarks" / "programs" / f"{name}.py")
    return [script, *([variant] if variant else [])]
