"""`find_batch_size` without a GPU: which sizes it tries, what it says, what it refuses; and
`Rollback`, which puts back what a function changed."""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import random
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torcharena import BatchSize, find_batch_size
from torcharena.batches import batches
from torcharena.batches.ranks import Ranks
from torcharena.batches.search import Search, Try
from torcharena.rehearsal import batches as by_rehearsal
from torcharena.rehearsal import cards, launch, report, verdict

GIB = 1 << 30


# --- the search ---------------------------------------------------------------------------
def searched(search: Search, limit: int, peak: Any = None) -> list[int]:
    """The sizes it tries where all up to ``limit`` run."""
    tried: list[int] = []
    while (size := search.next()) is not None:
        assert size in search.sizes and size not in tried and len(tried) < 40
        tried.append(size)
        search.tell(size, size <= limit, peak(size) if peak and size <= limit else None)
    return tried


@pytest.mark.parametrize("close", [1.0, 0.96])
@pytest.mark.parametrize("known", ["nothing", "peaks", "misleading peaks"])
def test_the_largest_size_is_found_from_anywhere(close: float, known: str) -> None:
    draw = random.Random(7)
    count = 0
    for _ in range(400):
        most, multiple = draw.choice([1, 5, 100, 1024, 4096]), draw.choice([1, 1, 8])
        sizes = range(multiple, most + 1, multiple)
        if not sizes:
            continue
        limit, start = draw.randint(0, most), draw.choice(sizes)
        noise = 0.4 if known.startswith("mis") else 0.0

        def peak(size: int, noise: float = noise) -> int:
            return int((500 + 10 * size) * (1 + noise * draw.random()))

        search = Search(sizes, start, 500 + 10 * limit + draw.randint(0, 9), close)
        tried = searched(search, limit, None if known == "nothing" else peak)
        right = max((size for size in sizes if size <= limit), default=0)
        assert close * right <= search.best <= limit
        assert close < 1 or search.best == right
        count = max(count, len(tried))
    assert count <= 22


def test_peaks_lead_to_the_answer_in_few_tries() -> None:
    search = Search(range(1, 1 << 20), 64, 1000 + 3 * 50_000, 0.96)
    assert len(searched(search, 50_000, lambda size: 1000 + 3 * size)) <= 6
    assert 48_000 <= search.best <= 50_000
    search = Search(range(1, 1025), 128, None, 0.96)  # S25: the limit 100, from 128
    assert searched(search, 100)[0] == 128
    assert 95 <= search.best <= 100
    forecast = {16: 160, 256: 2560}
    search = Search(range(1, 1025), 16, 9000, 0.96, forecast=forecast)
    assert len(searched(search, 890, lambda size: 10 * size)) <= 4
    assert search.best >= 860


def test_an_answer_that_does_not_run_again_is_none() -> None:
    search = Search(range(1, 101), 50, None, 0.96)
    searched(search, 100)
    assert search.best == 100
    search.tell(100, False)
    assert search.best == 50
    searched(search, 90)
    assert 87 <= search.best <= 90


@pytest.mark.parametrize("largest", [0, 1, 3, 4, 7, 8, 13, 20])
@pytest.mark.parametrize(
    ("start", "least", "most", "multiple"),
    [(1, None, 20, 1), (8, None, 20, 4), (5, 3, 17, 5), (20, 2, 20, 1)],
)
def test_rehearsals_find_the_largest(
    largest: int, start: int, least: int | None, most: int, multiple: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tried = []

    def rehearse(fn: Any, args: Any, kwargs: Any, options: Any) -> report.Report:
        tried.append(args[0])
        fits = args[0] <= largest
        peak = GIB * (args[0] + 1) // 2 if fits else 0
        return a_report(args[0], peak, fits, "16GiB")

    monkeypatch.setattr(by_rehearsal, "rehearsed", rehearse)
    found = find_batch_size(print, start, least, most, "16GiB", multiple=multiple)
    low = least or multiple
    allowed = [n for n in range(low, most + 1) if n % multiple == 0]
    assert found == max((n for n in allowed if n <= largest), default=0)
    assert set(tried) <= set(allowed) and len(tried) == len(set(tried)) <= 10
    assert str(found.best or "none") in found.table().splitlines()[0]


def test_an_effective_size_is_met_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def rehearse(fn: Any, args: Any, kwargs: Any, options: Any) -> report.Report:
        seen.append((args[0], kwargs["accumulation"]))
        return a_report(args[0], GIB, args[0] <= 50, "16GiB")

    def train(rate: float, batch_size: int, accumulation: int) -> None:
        raise AssertionError

    monkeypatch.setattr(by_rehearsal, "rehearsed", rehearse)
    with_rate = functools.partial(train, 0.1)
    found = find_batch_size(with_rate, 8, gpu="16GiB", effective=240)
    assert (found, found.accumulation) == (48, 5)
    assert all(size * steps == 240 for size, steps in seen)
    assert found.table().startswith(
        "largest batch size on 16GiB: 48, 240 by 5 accumulated"
    )


def test_two_sizes_are_rehearsed_for_a_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(command: Any, card: Any, **named: Any) -> launch.Run:
        with open(command[-1], "rb") as file:
            size = pickle.loads(pickle.loads(file.read())["call"])[1][0]
        seen.append((size, named["steps"], card.memory))
        done = launch.Run("native", card, None, exit_code=int(size > 500))
        device = {"device": 0, "peak_requested": 100 + 10 * size, "peak_reserved": 0}
        done.processes = [{"devices": [device], "error": "ValueError: of its own"}]
        return done

    monkeypatch.setattr(launch, "run", run)
    call, wanted = batches.Call(json.dumps), batches.Wanted(8, None, 4096, None, 8)
    found, why = by_rehearsal.forecast(call, wanted, 8, None)
    assert found == {8: 180, 128: 1380} and not why
    assert seen == [(8, 3, 1 << 40), (128, 3, 1 << 40)]
    found, why = by_rehearsal.forecast(call, wanted, 64, 2)
    assert not found and why == "the rehearsal of 1024 failed: ValueError: of its own"
    found, why = by_rehearsal.forecast(batches.Call(threading.Lock()), wanted, 8, None)
    assert not found and "cannot" in why


# --- what it says -------------------------------------------------------------------------
def a_report(size: int, peak: int, fits: bool, gpu: str) -> report.Report:
    card = cards.find(gpu)
    run = launch.Run("arena", card, None, exit_code=0 if fits else 1)
    device = {"device": 0, "ooms": run.exit_code, "retries": 0, "peak_requested": peak,
              "peak_reserved": peak + GIB // 2}  # fmt: skip
    run.processes = [{"rank": None, "devices": [device], "oom": None}]
    outcome = report.Outcome(run, verdict.judge(run, run.peak_reserved if fits else None))
    return report.Report([f"train({size})"], card, outcomes=[outcome])


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> BatchSize:
    """Half a GiB a sample on 24 GiB."""
    monkeypatch.setattr(
        by_rehearsal,
        "rehearsed",
        lambda fn, args, kwargs, options: a_report(
            args[0], args[0] * GIB // 2, args[0] <= 40, "24GiB"
        ),
    )
    return find_batch_size(print, start=8, max=64, gpu="24GiB")


def test_it_is_a_number(found: BatchSize) -> None:
    assert found == 40 and found + 1 == 41 and [0] * found == [0] * 40
    assert f"{found}" == str(found) == f"{found}" == json.dumps(found) == "40"
    assert repr(found) == "BatchSize(40)"
    again = pickle.loads(pickle.dumps(found))
    assert again == 40 and again.table() == found.table() and again.accumulation == 1
    assert not BatchSize()


def test_a_cells_value_is_the_text(found: BatchSize) -> None:
    class Printer:
        text = staticmethod(lambda said: shown.append(said))

    shown: list[str] = []
    found._repr_pretty_(Printer(), False)
    assert shown == [found.table()] and "does not fit" in shown[0]
    assert repr(found.reports[8]) == "<Report: train(8) on custom: fits>"


def test_the_curve_shows_the_room_and_what_ran_out(found: BatchSize) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    axes = found.plot()
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert (
        4.0 in lines["asked for"].get_ydata() and 20.0 in lines["asked for"].get_ydata()
    )
    assert 20.5 in lines["reserved (arena)"].get_ydata()
    assert all(size > 40 for size in lines["ran out"].get_xdata())
    room = found.reports[8].card.room
    doubt = found.reports[40].outcomes[0].verdict.unsure
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert band.y1 == pytest.approx(room / GIB)
    assert band.y0 == pytest.approx((room - doubt) / GIB)


def test_the_evaluation_is_told_apart() -> None:
    said = BatchSize(64)
    said.tried = [
        Try(64, True, GIB, GIB),
        Try(128, False, why="memory", part="evaluation"),
    ]
    said.failed_in = "evaluation"
    assert "128  runs out, evaluation" in said.table()
    assert "At 128 it is the evaluation that runs out" in said.table()
    said.evaluation = BatchSize(96)
    assert "for evaluation, largest batch size on a card: 96" in said.table()
    assert "At 128" not in said.table()


# --- what it refuses ----------------------------------------------------------------------
def test_arguments_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        {"start": 0}, {"start": 5, "max": 4}, {"min": 4, "start": 2}, {"multiple": 0},
        {"min": 9, "max": 8},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="1 <= min <= start <= max"):
            find_batch_size(print, **wrong)
    for named in (
        {"start": 1.5}, {"max": "8"}, {"effective": 2.0}, {"multiple": True},
        {"start": float("nan")}, {"max": float("inf")}, {"min": False},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="a whole number"):
            find_batch_size(json.dumps, **named)
    with pytest.raises(ValueError, match="no divisor of 7"):
        find_batch_size(print, min=2, max=6, effective=7)
    with pytest.raises(ValueError, match="no multiple"):
        find_batch_size(print, min=9, max=15, multiple=8)
    with pytest.raises(ValueError, match="no card"):
        find_batch_size(print, gpu="moon")
    with pytest.raises(ValueError, match="one of arena"):
        find_batch_size(print, gpu="h100", allocator="malloc")
    with pytest.raises(ValueError, match="set_limit"):
        find_batch_size(print, limit="2GiB")
    with pytest.raises(TypeError, match="a function"):
        find_batch_size(8)
    with pytest.raises(ValueError, match="max=1000000000000000000: more than"):
        find_batch_size(print, max=10**18)
    for steps in (-1, 1.5):
        with pytest.raises(ValueError, match=f"steps={steps}"):
            find_batch_size(print, steps=steps)
    for named in ({"evaluate": 3}, {"show": 3}):
        with pytest.raises(TypeError, match=f"{next(iter(named))}=3.: a function"):
            find_batch_size(print, **named)
    monkeypatch.setattr(batches, "_has_gpu", lambda: False)
    with pytest.raises(RuntimeError, match=r'no GPU here.*gpu="24GiB"'):
        find_batch_size(print)


def test_a_function_in_which_nothing_would_run() -> None:
    def generator(size: int) -> Iterator[int]:
        yield size

    async def coroutine(size: int) -> None:
        raise AssertionError

    async def both(size: int) -> Any:
        yield size

    class Callable:
        def __call__(self, size: int) -> Iterator[int]:
            yield size

    for fn in (generator, coroutine, both, functools.partial(generator), Callable()):
        with pytest.raises(TypeError, match="calling it runs nothing"):
            find_batch_size(fn, gpu="16GiB")
        with pytest.raises(TypeError, match="calling it runs nothing"):
            find_batch_size(start=2)(fn)
    with pytest.raises(TypeError, match="a coroutine, in which nothing has run"):
        batches.Call(lambda size: coroutine(size))(8, 1)
    assert batches.Call(lambda size: (n for n in range(size)))(3, 1) is not None


def test_sizes_of_numpy_and_by_name() -> None:
    class Whole:
        def __index__(self) -> int:
            return 8

    wanted = batches.Wanted(Whole(), None, 16, None, 1)  # type: ignore[arg-type]
    assert type(wanted.start) is int and wanted.start == 8

    def by_name(*, batch_size: int, accumulation: int) -> Any:
        return batch_size, accumulation

    assert batches.Call(by_name)(4, 2) == (4, 2)


def test_a_decorated_function_is_called_without_its_size() -> None:
    class Fit:
        rates: tuple[float, ...] = ()

        def fit(self, batch_size: int, rate: float, accumulation: int = 1) -> Any:
            return batch_size, rate, accumulation

    def find(call: Any) -> BatchSize:
        found = BatchSize(8, 4)
        assert call(3, 2) == (3, 0.5, 2)
        searches.append(call)
        return found

    searches: list[Any] = []
    Fit.fit = batches._decorated(Fit.fit, find=find)  # type: ignore[method-assign]
    assert Fit().fit(0.5) == Fit().fit(rate=0.5) == (8, 0.5, 4)
    assert len(searches) == 1
    with pytest.raises(TypeError, match="finds its batch_size by itself"):
        Fit().fit(batch_size=8, rate=0.5)
    with pytest.raises(TypeError, match=r"multiple values|too many positional"):
        Fit().fit(0.5, 1, 2)
    Fit.fit.batch_size = None  # type: ignore[attr-defined]
    assert type(Fit().fit(0.5)[0]) is int and len(searches) == 2


# --- out of memory, and other errors ------------------------------------------------------
torch = pytest.importorskip("torch")
failures = pytest.importorskip("torcharena.batches.failures")
rollback = pytest.importorskip("torcharena.batches.rollback")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("anything"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ..."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
        RuntimeError(
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling ..."),
        RuntimeError("NCCL error ... Last error: Cuda failure 2 'out of memory'"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you ..."
        ),
        MemoryError(),
    ],
)
def test_these_say_that_memory_ran_out(error: Exception) -> None:
    assert failures.why_out_of_memory(error)
    outer = RuntimeError("the compiler failed")
    outer.__cause__ = error
    assert failures.why_out_of_memory(outer)


def test_a_group_says_it_where_all_of_it_does() -> None:
    class Group(Exception):  # as Python 3.11's
        exceptions: tuple[Exception, ...] = ()

    group = Group("both")
    assert not failures.why_out_of_memory(group)
    group.exceptions = (torch.OutOfMemoryError("one"), MemoryError())
    assert failures.why_out_of_memory(group)
    group.exceptions = (torch.OutOfMemoryError("one"), KeyError("of the user's"))
    assert not failures.why_out_of_memory(group)


@pytest.mark.parametrize(
    ("error", "when_full"),
    [
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("out of memory of things to say"), False),
        (ValueError("CUDA out of memory"), False),
        (
            RuntimeError("GET was unable to find an engine to execute this computation"),
            True,
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling ..."),
            True,
        ),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may ..."),
            True,
        ),
    ],
)
def test_these_do_not(error: Exception, when_full: bool) -> None:
    assert not failures.why_out_of_memory(error)
    assert bool(failures.why_out_of_memory(error, full=True)) == when_full


def where(fail: Any) -> str:
    grades = failures.Grades()
    try:
        with grades:
            fail()
    except torch.OutOfMemoryError as error:
        return str(grades.part_of(error))
    raise AssertionError("it ran")


class Momentum(torch.optim.Optimizer):
    """Makes state when it steps, as Adam does. The base's __init__ imports a compiler, which
    takes seconds."""

    def __init__(self, parameters: Any, rate: float) -> None:
        self.state = defaultdict(dict)
        self.param_groups = [{"params": list(parameters), "lr": rate}]
        self.before_step = lambda: None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.before_step()
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                held = self.state[one].setdefault("momentum", torch.zeros_like(one))
                held.add_(one.grad)
                one.sub_(held, alpha=group["lr"])


class Failing(torch.nn.Module):
    """Runs out in its forward."""

    def forward(self, x: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_an_evaluation_is_told_from_training() -> None:
    model = Failing()
    frozen = torch.nn.Sequential(model)
    optimizer = Momentum([torch.nn.Parameter(torch.zeros(1))], 0.1)

    class Inside(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():  # as in reentrant checkpointing
                return model(x)

    def no_grad() -> None:
        with torch.no_grad():
            model(1)

    @torch.inference_mode()
    def inference() -> None:
        model(1)

    def evaluating() -> None:
        frozen.eval()(1)

    def stepping() -> None:
        optimizer.before_step = lambda: model(1)
        optimizer.step()

    def caught() -> None:
        with pytest.raises(torch.OutOfMemoryError):
            no_grad()
        model(1)

    before = torch.no_grad.__exit__
    assert [where(one) for one in (no_grad, inference)] == ["evaluation"] * 2
    training = (lambda: model(1), lambda: Inside()(1), stepping, caught)
    assert [where(one) for one in training] == ["training"] * 4
    assert where(evaluating) == "evaluation"
    model.train()
    frozen.train()
    model.eval()  # a frozen part of what trains
    assert where(lambda: frozen(1)) == "training"
    assert torch.no_grad.__exit__ is before


# --- putting back -------------------------------------------------------------------------
counter = 0


class Owner:
    """A program's own class, with all kinds of state."""

    made = 0
    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.slot = "slot"
        self.list, self.set, self.deque = [1], {1}, deque([1], maxlen=3)
        self.ordered = OrderedDict(a=1, b=2)
        self.draw = random.Random(3)
        self.generator = torch.Generator().manual_seed(3)

    def change(self) -> None:
        global counter
        counter += 1
        type(self).made += 1
        self.slot = "other"
        self.list.append(2)
        self.set.add(2)
        self.deque += [2, 3, 4]
        self.ordered.move_to_end("a")
        self.new = self
        self.draw.random()
        torch.rand(1, generator=self.generator)


def test_what_a_function_reaches_is_put_back() -> None:
    owner, total = Owner(), 0
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = Momentum(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    first = model[0].weight
    first.grad = torch.ones(3, 3)

    def fn(hook: Any = None) -> None:
        nonlocal total
        total += 1
        owner.change()
        model.eval()
        model[1].train()
        model(torch.rand(5, 3)).sum().backward()
        optimizer.step()
        schedule.step()
        model.extra = torch.nn.Linear(1, 1)
        model.register_forward_hook(lambda *_: None)
        model[0].bias.requires_grad_(False)
        first.data = first.data.double()
        random.random()
        torch.rand(1)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)

    def state() -> str:
        held = vars(owner) | {"slot": owner.slot, "draw": owner.draw.getstate()}
        held["generator"] = owner.generator.get_state().tolist()
        said = [
            held, total, counter, Owner.made, model.state_dict(), dict(optimizer.state), optimizer.param_groups,
            schedule.state_dict(), [p.grad for p in model.parameters()], list(vars(model)),
            [m.training for m in model.modules()], len(model._forward_hooks),
            [(p.requires_grad, p.data_ptr()) for p in model.parameters()],
            torch.get_rng_state().tolist(), random.getstate(), torch.is_grad_enabled(),
            torch.get_default_dtype(), list(optimizer.state), optimizer._opt_called,
        ]  # fmt: skip
        return repr(said)

    optimizer._opt_called = False  # type: ignore[attr-defined]
    before = state()
    kept = rollback.Rollback(functools.partial(fn, hook=None))
    assert not kept.notes and not kept.reaches_cuda and kept.host_bytes > 0
    for _ in range(2):
        fn()
        assert state() != before
        kept.restore()
        assert state() == before
    assert first.grad is not None and first.grad.sum() == 9


def test_what_is_not_put_back_is_said() -> None:
    large = torch.zeros(rollback._LARGE_ON_HOST // 4 + 1)
    kept = rollback.Rollback(lambda: large)
    kept.restore()
    assert not kept.notes and not kept.host_bytes
    large += 1
    kept.restore()
    assert kept.notes == ["a tensor on the host of 64 MiB, which it changed"]


def test_an_error_under_way_keeps_its_frames() -> None:
    def outer() -> None:
        mine = [1]
        raise KeyError(mine)

    try:
        outer()
    except KeyError as handled:
        try:
            outer()
        except KeyError as error:
            frame = error.__traceback__.tb_next.tb_frame  # type: ignore[union-attr]
            failures.let_go(error, handled)
            assert not frame.f_locals and error.__traceback__ is None
        assert handled.__traceback__.tb_next.tb_frame.f_locals  # type: ignore[union-attr]


# --- several ranks ------------------------------------------------------------------------
class Store:
    """torch's, between threads."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> str:
        return self.values[key]

    def wait(self, keys: list[str], patience: Any) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: keys[0] in self.values, 0.5):
                raise RuntimeError("wait timeout")


def test_ranks_hear_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr("torcharena.batches.ranks._store", lambda: store)
    two = [Ranks(), Ranks()]
    for rank, one in enumerate(two):
        one.many, one.world, one.rank, one._place = True, 2, rank, "search"
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda one: one.all({"ran": one.rank == 0}), two))
        assert said == [[{"ran": True}, {"ran": False}]] * 2
        two[1].give_up(KeyError("mine"))
        with pytest.raises(RuntimeError, match="batch size 8 failed on rank 1: KeyError"):
            two[0].all({}, "batch size 8")
        with pytest.raises(
            RuntimeError, match="rank 1 has not come back from batch size 16"
        ):
            two[0].all({}, "batch size 16")


def test_replicas_exchange_nothing_while_sizes_are_tried() -> None:
    class Replica:
        require_forward_param_sync = True
        quiet = False

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            self.quiet = True
            yield
            self.quiet = False

    ranks, replica = Ranks(), Replica()
    with ranks.alone([replica]):
        assert not replica.quiet  # there is nobody to exchange with
    ranks.many = True
    with ranks.alone([replica]):
        assert replica.quiet and not replica.require_forward_param_sync
    assert not replica.quiet and replica.require_forward_param_sync
