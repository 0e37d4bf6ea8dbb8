"""A convolutional U-Net denoiser with attention at the bottom, cudnn.benchmark on, several image sizes."""
# ruff: noqa: B007, E741, F401

import torch
import torch.nn as nn
import torch.nn.functional as F
import truth

torch.backends.cudnn.benchmark = True
torch.manual_seed(0)


class Res(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.n1 = nn.GroupNorm(32, i)
        s.c1 = nn.Conv2d(i, o, 3, 1, 1)
        s.n2 = nn.GroupNorm(32, o)
        s.c2 = nn.Conv2d(o, o, 3, 1, 1)
        s.k = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(s, x):
        return s.k(x) + s.c2(F.silu(s.n2(s.c1(F.silu(s.n1(x))))))


class U(nn.Module):
    def __init__(s, c=128):
        super().__init__()
        s.i = nn.Conv2d(4, c, 3, 1, 1)
        s.d1, s.d2, s.d3 = Res(c, c), Res(c, 2 * c), Res(2 * c, 4 * c)
        s.a = nn.MultiheadAttention(4 * c, 8, batch_first=True)
        s.m = Res(4 * c, 4 * c)
        s.u3, s.u2, s.u1 = Res(8 * c, 2 * c), Res(4 * c, c), Res(2 * c, c)
        s.o = nn.Conv2d(c, 4, 3, 1, 1)

    def forward(s, x):
        a = s.d1(s.i(x))
        b = s.d2(F.avg_pool2d(a, 2))
        c = s.d3(F.avg_pool2d(b, 2))
        h = F.avg_pool2d(c, 2)
        n, k, y, z = h.shape
        t = h.flatten(2).transpose(1, 2)
        h = s.m(h + s.a(t, t, t, need_weights=False)[0].transpose(1, 2).view(n, k, y, z))
        h = s.u3(torch.cat([F.interpolate(h, scale_factor=2), c], 1))
        h = s.u2(torch.cat([F.interpolate(h, scale_factor=2), b], 1))
        return s.o(s.u1(torch.cat([F.interpolate(h, scale_factor=2), a], 1)))


m = U().cuda()
o = torch.optim.AdamW(m.parameters(), 1e-4)
for i, z in enumerate([64, 96, 64, 128, 80, 64, 112, 96, 64, 128]):
    x = torch.randn(16, 4, z, z, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        l = F.mse_loss(m(x), torch.randn_like(x))
    l.backward()
    o.step()
    o.zero_grad(set_to_none=True)
print(float(l))
