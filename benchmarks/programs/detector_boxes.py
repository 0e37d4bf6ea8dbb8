"""Faster R-CNN on pictures of different sizes with random boxes: training with warm-up and a
clipped gradient, then an evaluation that keeps the detections above a score.

How many proposals survive depends on the values of floats, so a rehearsal takes one possible
course here."""

from __future__ import annotations

import random

import torch
import truth  # noqa: F401
from torchvision.models.detection import fasterrcnn_resnet50_fpn_v2

CLASSES, BATCH, STEPS = 21, 3, 10


def pictures(count: int, draw: random.Random) -> tuple[list, list]:
    """``count`` pictures with sides of 480 to 800 and 3 to 30 boxes in each."""
    images, targets = [], []
    for _ in range(count):
        high, wide = draw.randrange(480, 801, 16), draw.randrange(480, 801, 16)
        boxes = []
        for _ in range(draw.randint(3, 30)):
            w, h = draw.uniform(16, wide / 2), draw.uniform(16, high / 2)
            x, y = draw.uniform(0, wide - w), draw.uniform(0, high - h)
            boxes.append([x, y, x + w, y + h])
        labels = [draw.randint(1, CLASSES - 1) for _ in boxes]
        images.append(torch.rand(3, high, wide))
        targets.append({"boxes": torch.tensor(boxes), "labels": torch.tensor(labels)})
    return images, targets


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    model = fasterrcnn_resnet50_fpn_v2(
        weights=None,
        weights_backbone=None,
        num_classes=CLASSES,
        min_size=640,
        max_size=1024,
    ).cuda()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.005, momentum=0.9, weight_decay=5e-4)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=STEPS)
    model.train()
    for step in range(STEPS):
        images, targets = pictures(BATCH, draw)
        images = [image.cuda(non_blocking=True) for image in images]
        targets = [{k: v.cuda() for k, v in target.items()} for target in targets]
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        warm_up.step()
        print(f"step {step}: {loss.item():.3f}", flush=True)
    model.eval()
    with torch.inference_mode():
        for _ in range(2):
            images, _ = pictures(4, draw)
            found = model([image.cuda() for image in images])
            kept = [int((f["scores"] > 0.5).sum()) for f in found]
            print("detections:", kept, [len(f["boxes"]) for f in found], flush=True)


if __name__ == "__main__":
    main()
