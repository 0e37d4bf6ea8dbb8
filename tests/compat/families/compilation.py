"""torch.compile, CUDA graphs, and kernels of one's own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..models import STEPS, Mlp, noise, update
from ..rows import row


@row("torch.compile", exact=False)
def compile_default() -> Iterator[torch.Tensor]:
    model = Mlp(layers=2).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x = noise(step)
        loss = compiled(x).square().mean()
        yield update(loss, optimizer)


def _compiled(mode: str) -> Iterator[torch.Tensor]:
    model = Mlp(layers=1, width=256).cuda().eval()
    compiled = torch.compile(model, mode=mode)
    with torch.no_grad():
        for step in range(STEPS):
            x = noise(step, 64, 256)
            yield compiled(x).square().mean().clone()


@row("torch.compile, max-autotune-no-cudagraphs", exact=False, rehearsed=False)
def compile_autotune() -> Iterator[torch.Tensor]:
    yield from _compiled("max-autotune-no-cudagraphs")


@row("torch.compile, max-autotune (graph trees)", exact=False, rehearsed=False)
def compile_max_autotune() -> Iterator[torch.Tensor]:
    yield from _compiled("max-autotune")


@row("torch.compile, reduce-overhead (CUDA graph trees)", exact=False, rehearsed=False)
def compile_reduce_overhead() -> Iterator[torch.Tensor]:
    yield from _compiled("reduce-overhead")


@row("graph trees in branches, forward and backward", exact=False, rehearsed=False)
def graph_trees() -> Iterator[torch.Tensor]:
    """A model and two heads in turn: graphs are captured after others were replayed."""
    from torch._inductor import config

    config.triton.slow_path_cudagraph_asserts = True
    body = Mlp(layers=1, width=256).cuda()
    heads = [torch.nn.Linear(256, 256 * (1 + n)).cuda() for n in range(2)]
    modules = [body, *heads]
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], 1e-3)
    graphed = [torch.compile(m, backend="cudagraphs", dynamic=False) for m in modules]
    for step in range(3 * STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        hidden = graphed[0](noise(step, 64, 256))
        loss = graphed[1 + step // 2 % 2](hidden).square().mean()
        yield update(loss, optimizer).clone()


@row("torch.compile, reduce-overhead without trees", exact=False, rehearsed=False)
def compile_without_trees() -> Iterator[torch.Tensor]:
    import torch._inductor.config as settings

    settings.triton.cudagraph_trees = False
    yield from _compiled("reduce-overhead")


@row("torch.cuda.graph, a whole step")
def cuda_graph() -> Iterator[torch.Tensor]:
    model = Mlp(layers=2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.zeros(64, 512, device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for n in range(STEPS):
        draw = torch.Generator().manual_seed(n)
        x.copy_(torch.randn(64, 512, generator=draw))
        graph.replay()
        yield loss.detach().clone()


@row("torch.cuda.make_graphed_callables")
def graphed_callables() -> Iterator[torch.Tensor]:
    model = Mlp(layers=2).cuda()
    sample = torch.randn(64, 512, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(STEPS):
        x = noise(step).requires_grad_()
        loss = graphed(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        yield loss.detach()


@row("a triton kernel", needs=("triton",), exact=False, rehearsed=False)
def triton_kernel() -> Iterator[torch.Tensor]:
    from ..kernels import doubled

    for step in range(STEPS):
        x = torch.full((1000 * (1 + step),), 1.0 + step, device="cuda")
        found = doubled(x)
        assert bool((found == 2 * x).all())
        yield found.mean()
