"""A small GPT under torch.compile's default mode, three lengths."""
# ruff: noqa: B007, E741, F401

import torch
import torch.nn.functional as F
import truth

torch.manual_seed(0)
D, H, L, V = 1024, 16, 8, 50304


class B(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.a = torch.nn.Linear(D, 3 * D)
        s.p = torch.nn.Linear(D, D)
        s.n1 = torch.nn.LayerNorm(D)
        s.n2 = torch.nn.LayerNorm(D)
        s.f = torch.nn.Sequential(
            torch.nn.Linear(D, 4 * D), torch.nn.GELU(), torch.nn.Linear(4 * D, D)
        )

    def forward(s, x):
        b, t, d = x.shape
        q, k, v = s.a(s.n1(x)).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
        x = x + s.p(
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(b, t, d)
        )
        return x + s.f(s.n2(x))


m = torch.nn.Sequential(
    torch.nn.Embedding(V, D), *[B() for _ in range(L)], torch.nn.Linear(D, V)
).cuda()
c = torch.compile(m)
o = torch.optim.AdamW(m.parameters(), 1e-4, fused=True)
for i, T in enumerate([512, 512, 768, 768, 512, 1024, 512, 768]):
    x = torch.randint(0, V, (8, T + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        l = F.cross_entropy(c(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    l.backward()
    o.step()
    o.zero_grad(set_to_none=True)
print(float(l))
