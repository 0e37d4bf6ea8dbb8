"""timm ViT-B with mixup, channels_last, autocast, gradient clipping, an exponential moving average and an evaluation with another batch size."""
# ruff: noqa: B905, E741, F401

import copy

import timm
import torch
import truth

torch.manual_seed(0)
m = timm.create_model("vit_base_patch16_224", num_classes=1000).cuda().train()
ema = copy.deepcopy(m).eval()
o = torch.optim.AdamW(m.parameters(), 1e-4, weight_decay=0.05)
s = torch.amp.GradScaler("cuda")
for i in range(12):
    b = [64, 48, 96, 80][i % 4]
    x = (
        torch.randn(b, 3, 224, 224)
        .cuda(non_blocking=True)
        .to(memory_format=torch.channels_last)
    )
    y = torch.nn.functional.one_hot(torch.randint(0, 1000, (b,)).cuda(), 1000).float()
    x = 0.7 * x + 0.3 * x.flip(0)
    y = 0.7 * y + 0.3 * y.flip(0)
    with torch.autocast("cuda", torch.float16):
        l = torch.nn.functional.cross_entropy(m(x), y)
    s.scale(l).backward()
    s.unscale_(o)
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    s.step(o)
    s.update()
    o.zero_grad(set_to_none=True)
    with torch.no_grad():
        [a.lerp_(p, 0.01) for a, p in zip(ema.parameters(), m.parameters())]
    if i % 5 == 4:
        with torch.inference_mode():
            print(
                i,
                ema(torch.randn(256, 3, 224, 224, device="cuda"))
                .argmax(1)
                .float()
                .mean()
                .item(),
            )
