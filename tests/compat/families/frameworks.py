"""Models and loops of other people's libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ..models import STEPS, gpt, images, tokens, update
from ..rows import row


class _Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        found = torch.randint(0, 4096, (96,), generator=draw)
        return {"input_ids": found, "labels": found}


@row("transformers' Trainer with evaluation", needs=("transformers", "accelerate"))
def trainer() -> Iterator[float]:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=6,
            eval_strategy="steps",
            eval_steps=3,
            logging_steps=1,
            save_steps=3,
            report_to=[],
            disable_tqdm=True,
            seed=1,
        )
        data = _Sentences()
        work = Trainer(model=gpt(), args=settings, train_dataset=data, eval_dataset=data)
        work.train()
        yield from (log["loss"] for log in work.state.log_history if "loss" in log)


@row("generate with a growing cache", needs=("transformers",), rehearsed=False)
def generate_growing() -> Iterator[torch.Tensor]:
    model = gpt(use_cache=True).cuda().eval()
    for step in range(STEPS):
        with torch.no_grad():
            found = model.generate(
                tokens(step), max_new_tokens=48, do_sample=False, pad_token_id=0
            )
        yield found.float().mean()


@row("generate with a static cache", needs=("transformers",), rehearsed=False)
def generate_static() -> Iterator[torch.Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    for step in range(3):
        with torch.no_grad():
            found = model.generate(
                tokens(step),
                max_new_tokens=32,
                do_sample=False,
                cache_implementation="static",
                disable_compile=True,
                pad_token_id=0,
            )
        yield found.float().mean()


@row("Lightning's Trainer", needs=("lightning",))
def lightning_trainer() -> Iterator[torch.Tensor]:
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    losses: list[torch.Tensor] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)
            )

        def training_step(self, batch: Any, _: int) -> Any:
            loss = F.mse_loss(self.layers(batch[0]), batch[0])
            losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.layers(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    draw = torch.Generator().manual_seed(1)
    data = DataLoader(TensorDataset(torch.randn(256, 64, generator=draw)), batch_size=32)
    lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), data, data)
    yield from losses


@row("accelerate's Accelerator", needs=("accelerate", "transformers"))
def accelerator() -> Iterator[torch.Tensor]:
    from accelerate import Accelerator

    helper = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = gpt()
    model, optimizer = helper.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
    for step in range(STEPS):
        batch = tokens(step)
        with helper.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            helper.backward(loss)
            helper.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield loss.detach()


@row("timm: ResNet with channels_last", needs=("timm",), exact=False)
def timm_resnet() -> Iterator[torch.Tensor]:
    import timm

    model: Any = timm.create_model("resnet18", num_classes=10)
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    for step in range(STEPS):
        x, y = images(step, 8, 64 + 32 * (step % 2))
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)
        yield update(loss, optimizer)


@row("timm: ViT with an average of weights", needs=("timm",))
def timm_vit() -> Iterator[torch.Tensor]:
    import timm
    from timm.utils import ModelEmaV3

    model: Any = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=64)
    model = model.cuda()
    average = ModelEmaV3(model, decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = images(step)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update(model)
        yield loss.detach()


@row(
    "torch-geometric: top-k pooling",
    needs=("torch_geometric",),
    exact=False,
    rehearsed=False,
)
def geometric() -> Iterator[torch.Tensor]:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GCNConv, TopKPooling, global_mean_pool

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = GCNConv(16, 64), GCNConv(64, 64)
            self.pool = TopKPooling(64, ratio=0.5)
            self.head = torch.nn.Linear(64, 4)

        def forward(self, graphs: Any) -> torch.Tensor:
            x = self.one(graphs.x, graphs.edge_index).relu()
            x, edges, _, batch, *_ = self.pool(x, graphs.edge_index, batch=graphs.batch)
            return self.head(global_mean_pool(self.two(x, edges), batch))

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        graphs = []
        for nodes in torch.randint(20, 200, (16,), generator=draw).tolist():
            edges = torch.randint(0, nodes, (2, nodes * 4), generator=draw)
            graphs.append(Data(torch.randn(nodes, 16, generator=draw), edges))
        batch = Batch.from_data_list(graphs).to("cuda")
        loss = F.cross_entropy(model(batch), torch.arange(16, device="cuda") % 4)
        yield update(loss, optimizer)


@row("torchvision: a detector", needs=("torchvision",), exact=False, rehearsed=False)
def detector() -> Iterator[torch.Tensor]:
    from torchvision.models.detection import (
        fasterrcnn_mobilenet_v3_large_320_fpn as build,
    )

    model = build(weights=None, weights_backbone=None, num_classes=5).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(4):
        pictures, _ = images(step, 2, 128)
        boxes = torch.tensor([[8.0, 8, 64, 64], [16, 32, 100, 120]], device="cuda")
        labels = torch.tensor([1, 2], device="cuda")
        wanted = [{"boxes": boxes, "labels": labels} for _ in range(2)]
        loss = sum(model(list(pictures), wanted).values())
        yield update(loss, optimizer)
