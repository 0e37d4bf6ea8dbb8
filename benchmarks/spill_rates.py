"""Rates of what changes places, beside the pinned copies of the same run.

    python -m benchmarks.spill_rates [--gib 8,60] [--only open,marks,sleep] [--pieces 32,512]

One JSON object a line; GB/s are 10^9 bytes a second. `marks`: live pieces of so many MiB that
come back at a step's mark, and that leave at one, mapping included: `over_pinned` is against
pinned copies one way, `over_two_way` against each way of both at once. `sleep`: a region of so
many GiB, the first sleep (which pins), then the best of two more and their wakes. `open`: how long
the driver takes to open pages of the host to the device, by one to four threads, which
bounds what leaves at a mark. In a rehearsal, where kernels compute nothing, `bytes_equal` is
false."""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torcharena

from benchmarks.host_pages import GIB, _Location, _Properties, pinned_rates, say

MIB = 1 << 20
u64, size = ctypes.c_ulonglong, ctypes.c_size_t


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


# --- opening pages ---------------------------------------------------------------------------
class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


def opening(_: list[int], __: list[int]) -> None:
    """Access to pages of the host that are mapped at addresses of ours."""
    cuda = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda")
    node = max(torcharena._core.probe(0)["numa_node"], 0)
    context = ctypes.c_void_p()
    check(cuda.cuCtxGetCurrent(ctypes.byref(context)))
    for page, count in ((4 * MIB, 256), (32 * MIB, 32)):
        start = ctypes.c_ulonglong()
        check(
            cuda.cuMemAddressReserve(
                ctypes.byref(start), size(page * count), size(0), u64(0), u64(0)
            )
        )
        wanted = _Properties(type=1, location=_Location(type=3, id=node))
        handles = [u64() for _ in range(count)]
        for number, handle in enumerate(handles):
            check(
                cuda.cuMemCreate(
                    ctypes.byref(handle), size(page), ctypes.byref(wanted), u64(0)
                )
            )
            check(
                cuda.cuMemMap(
                    u64(start.value + number * page), size(page), size(0), handle, u64(0)
                )
            )

        def give(
            first: int,
            step: int,
            *,
            page: int = page,
            count: int = count,
            at: Any = start,
        ) -> None:
            check(cuda.cuCtxSetCurrent(context))
            access = _Access(location=_Location(type=1, id=0), flags=3)
            for number in range(first, count, step):
                check(
                    cuda.cuMemSetAccess(
                        u64(at.value + number * page),
                        size(page),
                        ctypes.byref(access),
                        size(1),
                    )
                )

        for threads in (1, 2, 4):
            crew = [
                threading.Thread(target=give, args=(n, threads)) for n in range(threads)
            ]
            begin = time.perf_counter()
            for thread in crew:
                thread.start()
            for thread in crew:
                thread.join()
            took = time.perf_counter() - begin
            say(
                "open",
                page_MiB=page // MIB,
                threads=threads,
                us_a_page=took * 1e6 / count,
                GBs=page * count / took / 1e9,
            )
            check(cuda.cuMemUnmap(start, size(page * count)))
            for number, handle in enumerate(handles):
                check(
                    cuda.cuMemMap(
                        u64(start.value + number * page),
                        size(page),
                        size(0),
                        handle,
                        u64(0),
                    )
                )
        check(cuda.cuMemUnmap(start, size(page * count)))
        for handle in handles:
            check(cuda.cuMemRelease(handle))
        check(cuda.cuMemAddressFree(start, size(page * count)))


def check(result: int) -> None:
    if result:
        raise RuntimeError(f"the driver says {result}")


# --- at a step's mark --------------------------------------------------------------------------
def marks(_: list[int], pieces: list[int]) -> None:
    """What is live goes to the host by a cap that is lowered, and comes back by a raised one."""
    out, back, both = pinned_rates()
    say("pinned copies", to_host=out, to_device=back, each_of_both=both)
    torch.cuda.empty_cache()
    base = torcharena.memory_stats()["reserved_bytes"]
    for mib, count in [(m, n) for m in pieces for n in (1, max(2048 // m, 1))]:
        held = [
            torch.full((mib * MIB,), n % 251, dtype=torch.uint8, device="cuda")
            for n in range(count)
        ]
        whole = mib * MIB * count
        left = 64 if count > 1 else 4  # of it on the device: fewer than half
        best: dict[str, float] = {}
        for number in range(4):
            for way, limit in (("out", base + left * MIB), ("back", None)):
                torcharena.set_limit(limit)
                took, info = timed(lambda: torcharena._core.step(-1))
                assert info["status"] == 0, info["text"]
                moved = info["sent_out" if way == "out" else "brought_back"]
                name = way if number else f"first {way}"
                if moved >= whole // 2:
                    best[name] = max(best.get(name, 0.0), moved / took / 1e9)
        same = all(bool((t == n % 251).all()) for n, t in enumerate(held))
        for name, rate in best.items():
            one = out if name.endswith("out") else back
            say(
                f"mark, {name}",
                piece_MiB=mib,
                pieces=count,
                GBs=rate,
                over_pinned=rate / one,
                over_two_way=rate / both,
                bytes_equal=same,
            )
        del held
        gc.collect()
        torcharena.empty_cache(host=True)


# --- regions -----------------------------------------------------------------------------------
def sleeping(sizes: list[int], _: list[int]) -> None:
    out, back, _both = pinned_rates()
    for gib in sizes:
        name = f"benchmark of {gib} GiB"
        with torcharena.region(name):
            held = [
                torch.full((GIB,), n % 251, dtype=torch.uint8, device="cuda")
                for n in range(gib)
            ]
        best = [0.0, 0.0]
        for number in range(3):
            for way, call in enumerate((torcharena.sleep, torcharena.wake_up)):
                took, moved = timed(functools.partial(call, name))
                if number == 0 and way == 0:
                    say("first sleep", GiB=gib, seconds=took, GBs=moved / took / 1e9)
                else:
                    best[way] = max(best[way], moved / took / 1e9)
        same = all(bool((t == n % 251).all()) for n, t in enumerate(held))
        say(
            "sleep and wake",
            GiB=gib,
            sleep_GBs=best[0],
            wake_GBs=best[1],
            sleep_over_pinned=best[0] / out,
            wake_over_pinned=best[1] / back,
            bytes_equal=same,
        )
        del held
        gc.collect()
        torcharena.empty_cache(host=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", default="8,60")
    parser.add_argument("--pieces", default="32,512")
    parser.add_argument("--only", default="open,marks,sleep")
    options = parser.parse_args()
    sizes = [int(word) for word in options.gib.split(",")]
    pieces = [int(word) for word in options.pieces.split(",")]
    torcharena.enable(spill=f"{max(sizes) + 8}GiB")
    parts: dict[str, Callable[[list[int], list[int]], None]] = {
        "open": opening,
        "marks": marks,
        "sleep": sleeping,
    }
    for name in options.only.split(","):
        parts[name](sizes, pieces)


if __name__ == "__main__":
    main()
