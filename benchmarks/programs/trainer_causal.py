"""A small GPT-2 under transformers' Trainer: sequences of varying length padded by batch,
gradient accumulation, evaluations that keep the logits on the GPU until their end, checkpoints
that are saved, and the best one loaded at last."""

from __future__ import annotations

import random
import tempfile

import numpy as np
import torch
import truth  # noqa: F401
from transformers import (
    EvalPrediction,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

WORDS, PAD = 32_000, 0


class Texts(torch.utils.data.Dataset):
    """Random tokens, 64 to 512 of them."""

    def __init__(self, count: int, seed: int, longest: int) -> None:
        draw = random.Random(seed)
        make = np.random.default_rng(seed)
        self.rows = [
            torch.from_numpy(make.integers(1, WORDS, draw.randint(64, longest)))
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    mask = (tokens != PAD).long()
    labels = tokens.masked_fill(mask == 0, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def metrics(found: EvalPrediction) -> dict[str, float]:
    """The share of tokens that the model says right."""
    said, wanted = found.predictions[:, :-1].argmax(-1), found.label_ids[:, 1:]
    known = wanted != -100
    return {"right": float((said[known] == wanted[known]).mean())}


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=8, n_embd=768, n_head=12, vocab_size=WORDS, n_positions=512
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=12,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=2,
            max_steps=12,
            eval_strategy="steps",
            eval_steps=6,
            save_strategy="steps",
            save_steps=6,
            save_total_limit=1,
            load_best_model_at_end=True,
            metric_for_best_model="right",
            logging_steps=2,
            learning_rate=3e-4,
            warmup_steps=2,
            bf16=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Texts(288, 1, 512),
            eval_dataset=Texts(40, 2, 192),
            data_collator=collate,
            compute_metrics=metrics,
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
