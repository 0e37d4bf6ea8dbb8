"""The simulated GPU under the real PyTorch: devices, memory, streams, events, graphs."""

from __future__ import annotations

import pytest
from simulated import missing, run, said

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_device_says_what_the_card_is() -> None:
    done = run(
        """
        p = torch.cuda.get_device_properties(0)
        print(dict(name=p.name, cc=(p.major, p.minor), sms=p.multi_processor_count,
                   total=p.total_memory, warp=p.warp_size, l2=p.L2_cache_size,
                   threads=p.max_threads_per_multi_processor, count=torch.cuda.device_count(),
                   optin=p.shared_memory_per_block_optin, info=torch.cuda.mem_get_info(),
                   bf16=torch.cuda.is_bf16_supported(), uuid=str(p.uuid)))
        """,
        gpu="a100-40g",
        devices=3,
        values=False,
    )
    a100 = said(done)
    assert a100["name"] == "NVIDIA A100-SXM4-40GB"
    assert a100["cc"] == (8, 0) and a100["sms"] == 108 and a100["count"] == 3
    assert a100["total"] == 40339 << 20 and a100["warp"] == 32
    assert (
        a100["l2"] == 40 << 20 and a100["threads"] == 2048 and a100["optin"] == 163 << 10
    )
    assert a100["bf16"] is True
    free, total = a100["info"]
    assert total == a100["total"] and total - free == 430 << 20  # the context
    assert len(a100["uuid"]) == 36


def test_copies_keep_contents() -> None:
    run(
        """
        a = torch.arange(3_000_000, dtype=torch.int32)
        b = a.cuda()
        assert torch.equal(b.cpu(), a)
        pinned = torch.empty(a.shape, dtype=a.dtype, pin_memory=True)
        assert pinned.is_pinned() and not a.is_pinned()
        pinned.copy_(b, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(pinned, a)
        c = torch.empty_like(b)
        c.copy_(b)
        assert torch.equal(c.cpu(), a)
        f = torch.randn(100, 50)
        assert torch.equal(f.cuda().cpu(), f)
        assert torch.equal(f.t().cuda().cpu(), f.t())
        assert torch.equal(f.cuda()[10:20, 3:7].cpu(), f[10:20, 3:7])
        """
    )


def test_copies_without_values_keep_contents_too() -> None:
    run(
        """
        a = torch.randn(1 << 20)
        b = a.cuda()
        assert torch.equal(b.cpu(), a)
        c = torch.empty_like(b)
        c.copy_(b)
        assert torch.equal(c.cpu(), a)
        """,
        values=False,
    )


def test_two_devices_copy_to_each_other() -> None:
    run(
        """
        a = torch.arange(1000)
        b = a.to("cuda:0").to("cuda:1")
        assert b.device.index == 1 and torch.equal(b.cpu(), a)
        assert torch.cuda.can_device_access_peer(0, 1)
        assert torch.cuda.memory_allocated(0) == 0 and torch.cuda.memory_allocated(1) == 8192
        with torch.cuda.device(1):
            assert torch.zeros(4, device="cuda").device.index == 1
        """,
        devices=2,
    )


def test_out_of_memory_at_the_cards_size() -> None:
    done = run(
        """
        kept = []
        try:
            while True: kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error: text = str(error)
        count = len(kept)
        del kept
        again = torch.empty(count << 30, dtype=torch.uint8, device="cuda")
        print(dict(count=count, text=text, free=torch.cuda.mem_get_info()[0]))
        """,
        gpu="16GiB",
        values=False,
    )
    seen = said(done)
    # 16 GiB less the context of 530 MiB
    assert seen["count"] == 15
    assert "CUDA out of memory. Tried to allocate 1024.00 MiB" in seen["text"]
    assert "GPU 0 has a total capacity of 16.00 GiB" in seen["text"]
    assert seen["free"] == (16 << 30) - (530 << 20) - (15 << 30)


def test_expandable_segments_pack_what_native_cannot() -> None:
    code = """
        import random
        random.seed(1)
        live, asked, peak = [], 0, 0
        for i in range(300):
            size = random.randrange(1 << 20, 64 << 20)
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            if len(live) > 20: live.pop(random.randrange(len(live)))
        s = torch.cuda.memory_stats()
        print(dict(requested=s["requested_bytes.all.peak"],
                   reserved=s["reserved_bytes.all.peak"]))
        """
    native = said(run(code, values=False))
    expandable = said(
        run(code, values=False, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    )
    assert native["requested"] == expandable["requested"] > 600 << 20
    assert expandable["reserved"] < native["reserved"]
    assert expandable["reserved"] >= expandable["requested"]


def test_streams_and_events() -> None:
    run(
        """
        side = torch.cuda.Stream()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a = torch.ones(1 << 20, device="cuda")
        start.record()
        for _ in range(50): a.mul_(2)
        end.record()
        assert not end.query()
        end.synchronize()
        assert end.query() and start.elapsed_time(end) > 0
        with torch.cuda.stream(side):
            side.wait_event(end)
            b = a.sum()
            a.record_stream(side)
        assert not side.query()
        side.synchronize()
        assert side.query()
        torch.cuda.synchronize()
        assert torch.cuda.current_stream().query()
        high = torch.cuda.Stream(priority=-1)
        assert high.priority == -1 and side.priority == 0
        """,
        values=False,
    )


def test_graphs_capture_and_replay() -> None:
    run(
        """
        x = torch.zeros(64, 64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            y = (x @ x).relu()
        assert not torch.cuda.is_current_stream_capturing()
        for _ in range(3): graph.replay()
        torch.cuda.synchronize()
        assert y.shape == (64, 64)
        # what waits for work may not be captured
        broken = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(broken): torch.cuda.synchronize()
        except RuntimeError as error: assert "captur" in str(error), error
        else: raise SystemExit("a synchronisation was captured")
        torch.cuda.synchronize()
        (x + 1).sum().item()
        """,
        values=False,
    )


def test_graphed_module_trains() -> None:
    run(
        """
        m = torch.nn.Linear(32, 32).cuda()
        sample = torch.randn(8, 32, device="cuda", requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(m, (sample,))
        for _ in range(3):
            graphed(torch.randn(8, 32, device="cuda", requires_grad=True)).sum().backward()
        assert m.weight.grad.shape == (32, 32)
        """,
        values=False,
    )


def test_management_library_and_driver_agree() -> None:
    done = run(
        """
        class Info(ctypes.Structure):
            _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
        nvml, driver = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
        assert nvml.nvmlInit_v2() == 0 and driver.cuInit(0) == 0
        count, handle, info = ctypes.c_uint(), ctypes.c_void_p(), Info()
        assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)) == 0
        assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info)) == 0
        before = info.used
        kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
        assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info)) == 0
        name = ctypes.create_string_buffer(96)
        assert nvml.nvmlDeviceGetName(handle, name, 96) == 0
        uuid = ctypes.create_string_buffer(96)
        assert nvml.nvmlDeviceGetUUID(handle, uuid, 96) == 0
        print(dict(count=count.value, before=before, used=info.used, total=info.total,
                   name=name.value.decode(), uuid=uuid.value.decode(),
                   torch=str(torch.cuda.get_device_properties(1).uuid)))
        """,
        gpu="l4",
        devices=2,
        values=False,
    )
    seen = said(done)
    assert seen["count"] == 2 and seen["name"] == "NVIDIA L4" and seen["before"] == 0
    assert seen["used"] == (1 << 30) + (310 << 20) and seen["total"] == 22478 << 20
    assert seen["uuid"] == "GPU-" + seen["torch"]


def test_what_is_not_simulated_says_so_and_fails() -> None:
    done = run(
        """
        library = ctypes.CDLL(None)
        assert library.cusparseLtInit(None) == 10
        assert library.cusparseLtInit(None) == 10
        driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        at = ctypes.c_void_p()
        assert driver.cuGetProcAddress_v2(b"cuNoSuchThing", ctypes.byref(at), 12000,
                                          ctypes.c_uint64(0), ctypes.byref(found)) == 0
        assert found.value == 1 and not at.value
        """,
        values=False,
    )
    assert done.stderr.count("cusparseLtInit is not simulated") == 1


def test_unknown_card_is_refused() -> None:
    done = run("assert not torch.cuda.is_available()", gpu="h300", values=False)
    assert "TORCHARENA_SIM_GPU=h300" in done.stderr


def test_failures_can_be_asked_for() -> None:
    run(
        """
        lib = ctypes.CDLL("libcuda.so.1")
        lib.ta_simcuda_fail.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64,
                                        ctypes.c_int]
        lib.ta_simcuda_driver_calls.restype = ctypes.c_uint64
        torch.zeros(1, device="cuda")
        before = lib.ta_simcuda_driver_calls(b"plain_alloc")
        assert before >= 1
        assert lib.ta_simcuda_fail(b"plain_alloc", 1, 9, 1) == 0  # out of memory
        try: torch.empty(1 << 28, device="cuda")
        except torch.OutOfMemoryError: pass
        else: raise SystemExit("it did not fail")
        lib.ta_simcuda_fail(b"plain_alloc", 0, 0, 0)
        torch.empty(1 << 28, device="cuda")
        assert lib.ta_simcuda_driver_calls(b"plain_alloc") > before
        lib.ta_simcuda_violation.restype = ctypes.c_char_p
        assert lib.ta_simcuda_violation(None) is None
        """,
        values=False,
    )


def test_a_card_that_torch_has_no_code_of_its_own_for() -> None:
    """CUB takes its parameters by the architecture of the code that runs: an L4 (8.9) runs
    what was compiled for 8.6."""
    run(
        """
flags = torch.ones(1, 256, device="cuda", dtype=torch.bool)
assert torch.cumsum(flags, -1).shape == (1, 256)
torch.sort(torch.rand(5000, device="cuda"))
torch.unique(torch.randint(0, 9, (5000,), device="cuda"))
""",
        gpu="l4",
    )


def test_a_context_is_charged_once_when_it_is_made() -> None:
    """By the driver's function alone, as on a GPU, and not again by what uses it."""
    run(
        """
        import os
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
        L = ctypes.CDLL("libcuda.so.1")
        class Memory(ctypes.Structure):
            _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
        N = ctypes.CDLL("libnvidia-ml.so.1")
        device, found = ctypes.c_void_p(), Memory()
        assert N.nvmlInit_v2() == 0
        assert N.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
        def used():
            assert N.nvmlDeviceGetMemoryInfo(device, ctypes.byref(found)) == 0
            return found.used
        assert L.cuInit(0) == 0
        before = used()
        context = ctypes.c_void_p()
        assert L.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert used() - before == 530 << 20, (used(), before)
        assert L.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        torch.cuda.synchronize()
        assert used() - before == 530 << 20
        assert torch.cuda.mem_get_info()[0] == (16 << 30) - (530 << 20)
        """,
        values=False,
    )
