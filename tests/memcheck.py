"""Small programs for compute-sanitizer's memcheck, which slows a program down a hundred times.

    compute-sanitizer --tool memcheck --error-exitcode 86 python -m tests.memcheck NAME

Each moves memory about as it can: blocks of many sizes, holes split and joined, pages taken by
another stream, a graph that replays, a refusal that is caught, memory that went to the host."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torcharena

MIB = 1 << 20


def checked(blocks: list[torch.Tensor]) -> None:
    """Each block holds its own number still."""
    for number, block in enumerate(blocks):
        assert block[0].item() == block[-1].item() == number % 100, number


def numbered(sizes: list[int]) -> list[torch.Tensor]:
    return [
        torch.full((size,), number % 100, dtype=torch.uint8, device="cuda")
        for number, size in enumerate(sizes)
    ]


def basic() -> None:
    torcharena.enable(limit="256MiB")
    sizes = [1, 511, 512, 513, 70_001, MIB, MIB + 1, 5 * MIB, 9 * MIB + 7]
    for turn in range(3):
        kept = numbered(sizes * 2)
        holes = numbered(sizes)
        checked(kept)
        del holes[turn::2]  # to be filled by other sizes
        more = numbered([3 * size // 2 for size in sizes])
        checked(kept)
        checked(more)
    layer = torch.nn.Linear(65, 33).cuda()
    optimizer = torch.optim.AdamW(layer.parameters())
    for rows in (3, 17, 5):
        layer(torch.randn(rows, 65, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def streams() -> None:
    torcharena.enable(limit="48MiB")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for turn in range(12):  # at the cap pages go from one stream to the other
        x = torch.full((16 * MIB + turn,), 1, dtype=torch.uint8, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = torch.full((12 * MIB + turn,), 2, dtype=torch.uint8, device="cuda")
            total = x[0].long() + x[-1].long()
            x.record_stream(side)
        del x
        main.wait_stream(side)
        y.record_stream(main)
        assert total.item() == 2
        del y, total


def graphs() -> None:
    torcharena.enable(limit="256MiB")
    layer = torch.nn.Linear(64, 64).cuda()
    x, side = torch.randn(8, 64).cuda(), torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=side):
        y = layer(x).relu() + 1
    for _ in range(4):
        x.normal_()
        noise = numbered([3 * MIB, 100, MIB])  # beside it, and given up
        graph.replay()
        with torch.no_grad():
            again = layer(x).relu() + 1
        if not torcharena.is_rehearsal():  # where no kernel runs
            assert torch.allclose(y, again, atol=1e-5)
        checked(noise)


def oom() -> None:
    torcharena.enable(limit="32MiB", spill="64MiB")
    kept = numbered([9 * MIB + n for n in range(6)])  # the last of them on the host
    checked(kept)
    del kept[::2]
    torcharena.step()  # what fits comes back
    assert [int(block[-1]) for block in kept] == [1, 3, 5]
    try:
        torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        checked(numbered([5 * MIB, 77]))
    else:
        raise SystemExit("256 MiB were had under a cap of 32 MiB and 64 MiB of the host")


CASES: dict[str, Callable[[], None]] = {
    "basic": basic,
    "streams": streams,
    "graphs": graphs,
    "oom": oom,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
    torch.cuda.synchronize()
    from torcharena import _core

    assert _core.check() is None, _core.check()
    print(f"{sys.argv[1]}: done")
