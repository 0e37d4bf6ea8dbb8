"""torch-geometric: graph attention with top-k pooling; sizes depend on scores."""
# ruff: noqa: E741, F401

import torch
import truth
from torch_geometric.nn import GATConv, TopKPooling, global_mean_pool

torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.c1 = GATConv(128, 64, heads=8)
        s.p = TopKPooling(512, 0.5)
        s.c2 = GATConv(512, 64, heads=8)
        s.l = torch.nn.Linear(512, 10)

    def forward(s, x, e, b):
        x = s.c1(x, e).relu()
        x, e, _, b, _, _ = s.p(x, e, batch=b)
        return s.l(global_mean_pool(s.c2(x, e).relu(), b))


m = Net().cuda()
o = torch.optim.Adam(m.parameters(), 1e-3)
for i in range(10):
    n = 20000 + 4000 * (i % 3)
    e = torch.randint(0, n, (2, n * 20)).cuda()
    b = torch.arange(64).repeat_interleave(n // 64 + 1)[:n].cuda()
    l = torch.nn.functional.cross_entropy(
        m(torch.randn(n, 128).cuda(), e, b),
        torch.randint(0, 10, (int(b.max()) + 1,)).cuda(),
    )
    o.zero_grad()
    l.backward()
    o.step()
print(float(l))
