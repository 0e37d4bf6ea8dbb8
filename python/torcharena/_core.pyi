"""The C library's functions. Internal: the package's other modules are the interface.

Sizes and addresses are bytes; devices are CUDA ordinals. Functions that may block let other
threads of Python run. Those that need the allocator raise Error before `create`."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

Source = Literal["none", "api", "environment", "fraction", "admin"]
Gauge = tuple[int, int, int, int]  # current, peak, increased, decreased
Kinds = tuple[Gauge, Gauge, Gauge]  # all, small, large

class Error(RuntimeError):
    """The allocator or the driver refused a call."""

class Facts(TypedDict):
    reason: str  # "": the device was found; else why not, and the rest says nothing
    driver_version: int  # 13000: CUDA 13.0
    devices: int
    name: str
    uuid: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    total: int
    granularity: int  # of device pages; 0 without VMM
    peers: list[int]
    numa_node: int  # -1: unknown
    vmm: bool
    host_pages: bool
    rdma: bool
    wsl2: bool
    mig: bool
    context: bool

class Stats(TypedDict):
    allocations: Kinds
    allocated: Kinds
    requested: Kinds
    active_blocks: Kinds
    active: Kinds
    reserved: Gauge
    pages: Gauge
    pending: Gauge
    addresses: Gauge
    idle: int
    partly_used: int
    largest_idle_partly_used: int
    limit: int | None
    limit_source: Source
    page_bytes: int
    oom_count: int
    retry_count: int
    page_moves: int
    waits: int
    wait_us: float
    slow_us: float
    slow_allocs: int
    calls_reserve: int
    calls_create: int
    calls_release: int
    calls_map: int
    calls_unmap: int
    calls_access: int
    calls_event: int
    arenas: int
    streams: int
    pool_arenas: int  # of the arenas: those of graph pools
    mapped: Kinds
    holes: tuple[int, int, int]  # free pieces: all, small, large
    host: Gauge  # bytes pinned for the device
    spilled: Gauge  # of them, those of pages with blocks on them
    dropped: Gauge
    spill_allocs: int
    spill_bytes: int
    to_host: int
    to_device: int
    spill_wait_us: float
    host_budget: int  # of the process
    host_held: int

Mode = Literal["observe", "enforce"]

class Ledger(TypedDict):
    path: str
    shared: bool
    """Other users may take part."""

class LedgerState(TypedDict):
    open: bool
    path: str
    mode: Literal["off", "observe", "enforce"]
    claimed_slot: int | None
    held: int
    device_cap: int | None
    tenant_cap: int | None
    tenant: str
    problem: str

class LedgerRow(TypedDict):
    slot: int
    alive: bool
    """Else its owner died: the bytes count until one who needs them looks."""
    bytes: int
    unused: int
    spilled: int
    peak: int
    refused: int
    started: float
    pid: int
    uid: int
    label: str
    tenant: str
    claimed: bool
    mode: Mode
    limit: int | None
    limit_source: Source
    device_cap: int | None
    tenant_cap: int | None

class Block(TypedDict):
    address: int
    size: int
    requested: int
    state: Literal["live", "pending", "free"]
    serial: int

class Segment(TypedDict):
    device: int
    stream: int
    small: bool
    pool: tuple[int, int]
    address: int
    size: int
    allocated: int
    active: int
    requested: int
    page_bytes: int
    region: int  # 0: none
    on_host: int  # of size
    elsewhere: list[tuple[int, int]]  # address, size: pages that are not on the device
    away: int  # of size: asleep, nothing is mapped there
    blocks: list[Block]

class Step(TypedDict):
    status: int  # ta_status
    text: str  # of the status
    brought_back: int
    still_on_host: int
    sent_out: int  # beyond a cap that was lowered, or since another process asked
    us: float
    copy_us: float

class Moved(TypedDict):
    status: int
    text: str
    why: str  # of a refusal
    copied: int
    dropped: int
    device: int  # bytes of device memory given back, or taken
    pinned: int  # bytes that had to be pinned first
    us: float
    pin_us: float
    copy_us: float

class Region(TypedDict):
    name: str
    page_bytes: int
    on_host: bool  # from birth on
    touch_host: bool
    asleep: bool
    blocks: int
    allocated: int
    device: int
    host: int
    dropped: int

class Event(TypedDict):
    kind: Literal[
        "alloc", "free", "free_done", "record_stream", "map", "unmap", "oom", "mark"
    ]
    device: int
    address: int
    size: int
    serial: int
    stream: int
    free: int  # kind oom: bytes that were free
    time_us: int  # since 1970
    stack: int

class When(TypedDict):
    bytes: int  # live then; 0: there was no such moment
    us: float  # since the first phase
    step: int
    requested: int  # of a refusal: bytes asked for
    phase: int

class Usage(TypedDict):
    live: int  # bytes of live blocks
    blocks: int
    now_us: float  # since the first phase
    step: int
    lost: int  # blocks not counted for want of host memory
    bytes: int  # of host memory that this takes
    peak: When
    out_of_memory: When  # the last refusal

class Phase(TypedDict):
    name: str
    around: int  # the phase that it is in; 0: none
    entries: int
    us: float  # phases inside it included; the rest is without them
    allocs: int
    bytes: int
    live: int
    peak: int
    kept: int
    page_moves: int
    spilled: int
    waits: int
    wait_us: float
    late: float  # bytes a step that outlived theirs by two or more, freed of late
    activations: bool  # what blocks of it are that no category was told of; else other

Sample = tuple[int, int, int, int, tuple[int, ...]]
UsedBlock = tuple[int, int, int, int, int, int, int]

# --- creating, and what torch needs to know ---------------------------------------------
def create(
    fallback: bool = False,
    page_bytes: int = 0,
    slack: float = 0.0,
    guard: bool = False,
) -> None:
    """Makes the process's allocator; 0 is the default. Starts no driver. ``guard``: every
    block apart and watched (torcharena.h).

    Raises Error where there is one already, and in a forked child."""

def created() -> bool: ...
def forked() -> bool:
    """True in a child of the process that called `create`."""

def library_path() -> str:
    """This library's file. It exports ``ta_torch_alloc`` and ``ta_torch_free``."""

def hooks() -> dict[str, int]:
    """Addresses by hook: alloc, free, init, empty_cache, memory_fraction, base_address,
    record_stream, pool_begin, pool_end, pool_release."""

def torch_install() -> None:
    """Completes torch's allocator object; the init hook does it too. See `torch_status`."""

def torch_status() -> dict[str, str]:
    """By item ``ok`` or what is missing: out_of_memory_error, stream_owner, cacheInfo,
    memcpyAsync, enablePeerAccess."""

def probe(device: int, /) -> Facts:
    """What the driver says of a device. Starts the driver, makes no context."""

def driver_problem() -> str | None:
    """Why there is no usable driver; None where nothing is known against it."""

def messages() -> list[str]:
    """What C code has had to say since the last call."""

# --- host memory and regions ---------------------------------------------------------------
def set_spill(host_bytes: int | None, net: bool = True, /) -> None:
    """So many bytes may be pinned, None: spill is off. ``net``: a block for which there is no
    room is put there. Raises Error where the driver cannot."""

def host_memory() -> int | None:
    """Bytes that the machine, and the job's control group, could still give; None: unknown."""

def host_trim() -> int:
    """Gives pinned memory back that holds nothing; the bytes of it."""

def step(device: int = -1, /) -> Step: ...
def room(device: int, /) -> tuple[int, int, int, int | None]:
    """Bytes in live blocks, their highest since the call before, bytes reserved less those of idle pages, the cap."""

def region_open(name: str, page_bytes: int, on_host: bool, touch_host: bool, /) -> int:
    """The region's number; page_bytes 0: the default. Raises Error where it is there with
    other settings, and where there are too many."""

def region_enter(id: int, /) -> int:
    """This thread allocates in it; what held before. 0: in none."""

def region_sleep(id: int, keep: bool, /) -> Moved: ...
def region_wake(id: int, /) -> Moved: ...
def region_get(id: int, /) -> Region | None: ...
def region_of(address: int, /) -> tuple[int, bool]:
    """The region that holds the address, 0: none; and whether it sleeps."""

# --- pools beside torch's own allocator ----------------------------------------------------
def mempool_limit(region: int, device: int, bytes: int | None, /) -> None:
    """Of segments that the region's pool may hold on the device."""

def mempool_held(region: int, device: int, /) -> int: ...
def mempool_refusal() -> tuple[str, int, int] | None:
    """Why this thread's last request was refused, the device, the segment's bytes; told once."""

def mempool_settle() -> None:
    """What was freed during a capture goes."""

def mempool_capturing() -> bool:
    """A stream of torch's is being captured."""

# --- numbers -----------------------------------------------------------------------------
def set_limit(device: int, source: str, bytes: int | None, /) -> None:
    """Sets one source's limit, None for none; device -1: every device.

    Raises ValueError for a source that is none."""

def limit(device: int, /) -> tuple[int | None, Source]: ...
def stats(device: int, /) -> Stats:
    """All zero, but for the limit, for a device never used."""

def reset_peaks(device: int, /) -> None: ...
def reset_accumulated(device: int, /) -> None: ...
def device_memory(device: int, /) -> tuple[int, int]:
    """The driver's own pair: free bytes, all bytes."""

def device_used(device: int, /) -> bool: ...
def trim(device: int = -1, /) -> int:
    """Gives idle pages back to the driver; the bytes of them. -1: of every device."""

def check() -> str | None:
    """The first invariant that does not hold, both sides; None: all hold."""

def ledger_open(
    device: int,
    directory: str,
    uuid: str,
    label: str,
    tenant: str,
    claimed: bool,
    device_cap: int | None,
    tenant_cap: int | None,
    mode: Mode,
    /,
) -> Ledger:
    """Charges the device's growth to `directory/UUID.ledger`, made where there is none. The
    process takes its slot there when it first grows. Raises where the file is not to be
    trusted, and where the device holds memory already."""

def ledger_caps(
    device: int, device_cap: int | None, tenant_cap: int | None, mode: Mode, /
) -> int:
    """Other caps from the next growth on. Bytes given back, as far as idle memory goes,
    because more was held than they allow; other holders are asked for theirs."""

def ledger_heed(device: int, /) -> int:
    """Bytes given back because another process was refused and asked for them."""

def ledger_state(device: int, /) -> LedgerState: ...
def ledger_read(directory: str, uuid: str, /) -> list[LedgerRow]:
    """One a process, by slot; takes no lock. Empty where there is no file; raises where it
    is not to be trusted."""

def snapshot(device: int = -1, /) -> list[Segment]: ...

# --- who used what --------------------------------------------------------------------------
def usage_watch() -> None:
    """Counts from now on; what lives already belongs to phase 0. Again: nothing."""

def usage_unwatch() -> None:
    """Counts nothing more, until `usage_watch`: allocations cost as before."""

def usage_enter(name: str, /) -> bytes:
    """Enters a phase inside the present one; the answer is for `usage_leave`."""

def usage_enter_anew(name: str, /) -> bytes | None:
    """`usage_between(None)`, then `usage_enter`. None, and nothing done, where nothing is
    counted yet, and in a forked child."""

def usage_leave(
    span: bytes, between: str | None = None, backward: bool = False, /
) -> bool:
    """`usage_between(between)` where that is a name; leaves. True: a peak is newer than
    `usage_told`. Otherwise, with ``backward``, what the phase left is taken to be gradients."""

def usage_between(name: str | None, /) -> None:
    """What the leading thread does outside all phases counts to the phase of this name."""

def usage_step() -> bool:
    """A step ends. Whether `messages` may have something to say."""

def usage_due() -> bool:
    """Whether a peak is newer than `usage_told`."""

def usage_told() -> None:
    """All categories were told: a guess that was not confirmed is none."""

def usage_unused(bytes: int, /) -> None:
    """Bytes of autograd graphs that will not run backward, for the text of refusals."""

def usage_set_category(device: int, addresses: list[int], category: int, /) -> int:
    """Of live blocks that start there; how many did. Raises ValueError for a category."""

def usage_look(device: int, /) -> Usage: ...
def usage_phases(device: int, /) -> list[Phase]: ...
def usage_blocks(device: int, moment: int, /) -> list[UsedBlock]:
    """(address, size, step, phase, category, module, stack) of what lived at the peak (0), at the last refusal
    (1), or lives now (2); address 0: freed since."""

def usage_timeline(device: int, /) -> tuple[float, list[Sample]]:
    """(microseconds that a sample covers, samples from the start on). A sample: live bytes
    at its highest moment, the most reserved, the leading phase, step, bytes by category."""

def usage_tell_workspaces(locked: bool, /) -> int:
    """Says which live blocks are workspaces of cuBLAS; how many are. Only for a torch whose
    maps of them are laid out as csrc/torch/workspaces.h says; ``locked``: with a lock."""

def usage_check() -> str | None: ...
def usage_set_modules(device: int, addresses: list[int], modules: list[int], /) -> int:
    """Of live blocks that start there; how many did."""

def usage_modules(device: int, /) -> dict[int, tuple[int, int]]:
    """(allocations, bytes allocated) in each module that allocated, by its number; 0 is none.
    Empty where no module allocated."""

# --- where: modules and lines ---------------------------------------------------------------
def place_enter(module: int, outermost: bool = False, /) -> None:
    """This thread is in the module, by its number, until it leaves it."""

def place_leave(module: int, /) -> None: ...
def place_at(stack: int, /) -> None:
    """This thread is at these lines, by their number; 0: at none that are known."""

def place_begin() -> None:
    """Blocks remember from now on where they are allocated; until as many `place_end`."""

def place_end() -> None: ...
def place_now() -> tuple[int, int]:
    """(module, stack) that this thread's allocations count to."""

def place_runs(module: int, stack: int, grads: object = None, /) -> None:
    """A node of autograd's graph runs on this thread that was made there."""

def place_over() -> None:
    """Another forward or backward pass begins: nothing runs any more."""

def guard_name(stack: int, place: str, /) -> None:
    """What findings of guarded blocks call these lines."""

def guard_look() -> None:
    """Looks at all guarded blocks; what is found is told by `messages` or the next
    allocation."""

# --- recordings and replays ----------------------------------------------------------------
def mark(text: str, /) -> None: ...
def record_start(path: str, /) -> None:
    """Raises Error where the file cannot be written or a recording is under way."""

def record_stop() -> dict[str, int]:
    """Lines and bytes written; zero where nothing was under way. Raises Error where the
    recording had ended early."""

def history_start(limit: int, /) -> None:
    """Keeps the newest ``limit`` events; while it runs, sets the limit anew."""

def history_stop() -> None: ...
def history_seen() -> int:
    """Events since it began, or was cleared; 0 where there is none."""

def history() -> list[Event]: ...
def replay(
    text: bytes,
    limit: int | None = None,
    limit_ratio: float = 0.0,
    page_bytes: int = 0,
    null_driver: bool = False,
    check: bool = False,
    device_memory: int = 0,
    pass_after: int = 1000,
    slack: float = 0.0,
) -> Mapping[str, Any]:
    """One trace's figures. Raises ValueError(line, reason) for a malformed text."""
