"""The catalogue of cards, and what a process loses on one before it allocates anything.

The one source: ``csrc/simcuda/cards.inc`` is generated from it by
``python -m torcharena.rehearsal.cards > csrc/simcuda/cards.inc``, and a test compares them.

Memory is what ``cudaMemGetInfo`` reports as the total. The H200's was read from a GPU (driver
580.159, torch 2.11), and so was what a context takes there; the other cards' totals are
published figures, right to about 0.5 %, and their contexts usual sizes for a driver of the 580
series, not measured: a verdict leaves a margin for both (`Card.unsure`)."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, replace

from .. import sizes

__all__ = ["CARDS", "Card", "find", "table"]

MIB = 1 << 20

# By compute capability: KiB of shared memory an SM, and a block that opts in; threads and
# blocks that an SM holds.
_ARCHITECTURES = {
    "7.0": (96, 96, 2048, 32),
    "7.5": (64, 64, 1024, 16),
    "8.0": (164, 163, 2048, 32),
    "8.6": (100, 99, 1536, 16),
    "8.9": (100, 99, 1536, 24),
    "9.0": (228, 227, 2048, 32),
    "10.0": (228, 227, 2048, 32),
    "10.3": (228, 227, 2048, 32),
    "12.0": (100, 99, 1536, 24),
}
_MEMORY_MEASURED = frozenset({"h200"})
_CONTEXT_MEASURED = frozenset({"h200"})
# Code that is loaded as it is first used, beyond the context, in MiB. Measured on the H200
# alone (benchmarks/results/context-h200.json). Nothing simulates it, and which of it a
# program loads is not known here: all of it is doubt.
LIBRARIES = {
    "the first kernels": 92,
    "cuBLAS": 66,
    "attention": 16,
    "cuDNN": 2,
    "cuFFT": 8,
    "cuSOLVER": 96,
    "training steps": 64,
}
_LIBRARIES = sum(LIBRARIES.values()) * MIB


@dataclass(frozen=True)
class Card:
    """A GPU. Bytes, MHz, KiB where a name says so."""

    key: str
    name: str
    memory: int  # bytes, as the driver reports them
    capability: str
    sms: int
    l2_kib: int
    clock: int
    memory_clock: int
    bus: int  # bits
    context: int  # bytes that a process's context takes

    @property
    def room(self) -> int:
        """Bytes that one process can allocate."""
        return self.memory - self.context

    @property
    def context_measured(self) -> bool:
        return self.key in _CONTEXT_MEASURED

    @property
    def memory_measured(self) -> bool:
        return self.key in _MEMORY_MEASURED

    @property
    def unsure(self) -> int:
        """Bytes by which `room` may be wrong: the context where it was not measured, the
        published total, and the code of libraries, which only a GPU loads."""
        context = 0 if self.context_measured else self.context // 4
        total = 0 if self.memory_measured or self.key == "custom" else self.memory // 400
        return context + total + _LIBRARIES

    def of_size(self, memory: int) -> Card:
        """The same card with other memory; whole pages of 2 MiB."""
        return replace(self, memory=memory // (2 * MIB) * (2 * MIB))

    def spelt(self) -> str:
        """For TORCHARENA_SIM_GPU."""
        catalogued = _BY_KEY.get(self.key)
        if catalogued == self:
            return self.key
        size = f"{self.memory // 1024}KiB"
        return size if catalogued is None else f"{self.key}:{size}"

    def as_c(self) -> str:
        """The initialiser of ta_sc_card."""
        shared, shared_block, threads, blocks = _ARCHITECTURES[self.capability]
        major, minor = self.capability.split(".")
        mib, rest = divmod(self.memory, MIB)
        memory = f"UINT64_C({self.memory})" if rest else f"MIB({mib})"
        return (
            f'{{"{self.key}", "{self.name}", {memory}, {major}, {minor}, '
            f"{self.sms}, {shared}, {shared_block}, {self.l2_kib}, {threads}, {blocks}, "
            f"{self.clock}, {self.memory_clock}, {self.bus}, {self.context // MIB}}},"
        )


# One card a line: memory in MiB, compute capability, SMs, L2 cache in KiB, clock and memory
# clock in MHz, bits of the bus, what a context takes in MiB, and the name.
_TABLE = """
# data centre
b300             274000 10.3 148 129024 1920  3996 8192 640 NVIDIA B300 SXM6 AC
b200             182642 10.0 148 129024 1965  3996 8192 640 NVIDIA B200
h200        143155.9375  9.0 132  61440 1980  3201 6144 527 NVIDIA H200
h200-nvl         143156  9.0 132  61440 1785  3201 6144 530 NVIDIA H200 NVL
gh200             96768  9.0 132  61440 1980  2619 6144 530 NVIDIA GH200 480GB
h100              81004  9.0 132  51200 1980  2619 5120 530 NVIDIA H100 80GB HBM3
h100-pcie         81009  9.0 114  51200 1755  1593 5120 530 NVIDIA H100 PCIe
h100-nvl          95320  9.0 132  61440 1785  2619 6144 530 NVIDIA H100 NVL
h800              81004  9.0 132  51200 1980  2619 5120 530 NVIDIA H800
h20               97280  9.0  78  61440 1980  2619 6144 480 NVIDIA H20
a100-80g          81050  8.0 108  40960 1410  1593 5120 430 NVIDIA A100-SXM4-80GB
a100-80g-pcie     81037  8.0 108  40960 1410  1512 5120 430 NVIDIA A100 80GB PCIe
a100-40g          40339  8.0 108  40960 1410  1215 5120 430 NVIDIA A100-SXM4-40GB
a800              81050  8.0 108  40960 1410  1593 5120 430 NVIDIA A800-SXM4-80GB
a30               24060  8.0  56  24576 1440  1215 3072 400 NVIDIA A30
a40               45457  8.6  84   6144 1740  7251  384 320 NVIDIA A40
a10               22503  8.6  72   6144 1695  6251  384 310 NVIDIA A10
a10g              22503  8.6  80   6144 1710  6251  384 310 NVIDIA A10G
a16               14898  8.6  10   2048 1755  6251  128 210 NVIDIA A16
a2                14898  8.6  10   2048 1770  6251  128 210 NVIDIA A2
l40s              45466  8.9 142  98304 2520  9001  384 370 NVIDIA L40S
l40               45466  8.9 142  98304 2490  9001  384 370 NVIDIA L40
l20               45466  8.9  92  98304 2520  9001  384 340 NVIDIA L20
l4                22478  8.9  58  49152 2040  6251  192 310 NVIDIA L4
t4                14913  7.5  40   4096 1590  5001  256 200 Tesla T4
v100-32g          32494  7.0  80   6144 1530   877 4096 310 Tesla V100-SXM2-32GB
v100-16g          16144  7.0  80   6144 1530   877 4096 310 Tesla V100-SXM2-16GB
# workstation
rtxpro6000        97247 12.0 188 131072 2617 14001  512 450 NVIDIA RTX PRO 6000 Blackwell
rtxpro5000        48300 12.0 110  98304 2617 14001  384 380 NVIDIA RTX PRO 5000 Blackwell
rtx6000-ada       48520  8.9 142  98304 2505 10001  384 370 NVIDIA RTX 6000 Ada Generation
rtx5000-ada       32100  8.9 100  73728 2550  9001  256 340 NVIDIA RTX 5000 Ada Generation
rtx4500-ada       24080  8.9  60  49152 2580  9001  192 310 NVIDIA RTX 4500 Ada Generation
rtx4000-ada       20000  8.9  48  49152 2175  9001  160 300 NVIDIA RTX 4000 Ada Generation
a6000             48567  8.6  84   6144 1800  8001  384 320 NVIDIA RTX A6000
a5000             24240  8.6  64   6144 1695  8001  384 300 NVIDIA RTX A5000
a4000             16100  8.6  48   4096 1560  7001  256 260 NVIDIA RTX A4000
a2000-12g         11930  8.6  26   3072 1200  6001  192 230 NVIDIA RTX A2000 12GB
rtx8000           48570  7.5  72   6144 1770  7001  384 260 Quadro RTX 8000
rtx6000           24210  7.5  72   6144 1770  7001  384 260 Quadro RTX 6000
titan-rtx         24217  7.5  72   6144 1770  7001  384 260 NVIDIA TITAN RTX
# GeForce
rtx5090           32109 12.0 170  98304 2407 14001  512 430 NVIDIA GeForce RTX 5090
rtx5090-laptop    24000 12.0  82  65536 2160 14001  256 360 NVIDIA GeForce RTX 5090 Laptop GPU
rtx5080           15842 12.0  84  65536 2617 15001  256 360 NVIDIA GeForce RTX 5080
rtx5070ti         15842 12.0  70  49152 2452 14001  256 340 NVIDIA GeForce RTX 5070 Ti
rtx5070           11800 12.0  48  49152 2512 14001  192 310 NVIDIA GeForce RTX 5070
rtx5060ti-16g     15842 12.0  36  32768 2572 14001  128 300 NVIDIA GeForce RTX 5060 Ti
rtx5060ti-8g       7850 12.0  36  32768 2572 14001  128 300 NVIDIA GeForce RTX 5060 Ti
rtx5060            7850 12.0  30  32768 2497 14001  128 290 NVIDIA GeForce RTX 5060
rtx4090           24081  8.9 128  73728 2520 10501  384 370 NVIDIA GeForce RTX 4090
rtx4090-laptop    16000  8.9  76  65536 2040  9001  256 300 NVIDIA GeForce RTX 4090 Laptop GPU
rtx4080s          15970  8.9  80  65536 2550 11501  256 300 NVIDIA GeForce RTX 4080 SUPER
rtx4080           15970  8.9  76  65536 2505 11201  256 300 NVIDIA GeForce RTX 4080
rtx4070tis        15970  8.9  66  49152 2610 10501  256 290 NVIDIA GeForce RTX 4070 Ti SUPER
rtx4070ti         11871  8.9  60  49152 2610 10501  192 280 NVIDIA GeForce RTX 4070 Ti
rtx4070           11871  8.9  46  36864 2505 10501  192 260 NVIDIA GeForce RTX 4070
rtx4060ti-16g     15948  8.9  34  32768 2580  9001  128 240 NVIDIA GeForce RTX 4060 Ti
rtx4060ti-8g       7940  8.9  34  32768 2580  9001  128 240 NVIDIA GeForce RTX 4060 Ti
rtx4060            7940  8.9  24  24576 2460  8501  128 230 NVIDIA GeForce RTX 4060
rtx3090ti         24121  8.6  84   6144 1860 10501  384 300 NVIDIA GeForce RTX 3090 Ti
rtx3090           24121  8.6  82   6144 1695  9751  384 300 NVIDIA GeForce RTX 3090
rtx3080ti         12042  8.6  80   6144 1665  9501  384 280 NVIDIA GeForce RTX 3080 Ti
rtx3080-12g       12042  8.6  70   6144 1710  9501  384 270 NVIDIA GeForce RTX 3080
rtx3080           10001  8.6  68   5120 1710  9501  320 270 NVIDIA GeForce RTX 3080
rtx3070            7970  8.6  46   4096 1725  7001  256 250 NVIDIA GeForce RTX 3070
rtx3060ti          7970  8.6  38   4096 1665  7001  256 240 NVIDIA GeForce RTX 3060 Ti
rtx3060           11937  8.6  28   2304 1777  7501  192 230 NVIDIA GeForce RTX 3060
rtx2080ti         11004  7.5  68   5632 1635  7000  352 250 NVIDIA GeForce RTX 2080 Ti
rtx2080            7976  7.5  46   4096 1710  7000  256 230 NVIDIA GeForce RTX 2080
rtx2070            7976  7.5  36   4096 1620  7000  256 220 NVIDIA GeForce RTX 2070
rtx2060            5935  7.5  30   3072 1680  7000  192 210 NVIDIA GeForce RTX 2060
# MIG: a slice has its own memory and its share of the SMs
h200-1g.18gb      16384  9.0  16   7680 1980  3201  768 200 NVIDIA H200 MIG 1g.18gb
h200-2g.35gb      33280  9.0  32  15360 1980  3201 1536 260 NVIDIA H200 MIG 2g.35gb
h200-3g.71gb      71552  9.0  60  30720 1980  3201 3072 350 NVIDIA H200 MIG 3g.71gb
h100-1g.10gb       9984  9.0  16   6400 1980  2619  640 200 NVIDIA H100 80GB HBM3 MIG 1g.10gb
h100-1g.20gb      20096  9.0  26  12800 1980  2619 1280 240 NVIDIA H100 80GB HBM3 MIG 1g.20gb
h100-2g.20gb      20096  9.0  32  12800 1980  2619 1280 260 NVIDIA H100 80GB HBM3 MIG 2g.20gb
h100-3g.40gb      40320  9.0  60  25600 1980  2619 2560 350 NVIDIA H100 80GB HBM3 MIG 3g.40gb
h100-4g.40gb      40320  9.0  64  25600 1980  2619 2560 360 NVIDIA H100 80GB HBM3 MIG 4g.40gb
a100-1g.5gb        4864  8.0  14   5120 1410  1215  640 170 NVIDIA A100-SXM4-40GB MIG 1g.5gb
a100-2g.10gb       9856  8.0  28  10240 1410  1215 1280 220 NVIDIA A100-SXM4-40GB MIG 2g.10gb
a100-3g.20gb      19968  8.0  42  20480 1410  1215 2560 280 NVIDIA A100-SXM4-40GB MIG 3g.20gb
a100-80g-1g.10gb   9728  8.0  14   5120 1410  1593  640 170 NVIDIA A100-SXM4-80GB MIG 1g.10gb
a100-80g-2g.20gb  19968  8.0  28  10240 1410  1593 1280 220 NVIDIA A100-SXM4-80GB MIG 2g.20gb
a100-80g-3g.40gb  40192  8.0  42  20480 1410  1593 2560 280 NVIDIA A100-SXM4-80GB MIG 3g.40gb
a30-1g.6gb         5952  8.0  14   6144 1440  1215  768 170 NVIDIA A30 MIG 1g.6gb
a30-2g.12gb       12032  8.0  28  12288 1440  1215 1536 220 NVIDIA A30 MIG 2g.12gb
b200-1g.23gb      22016 10.0  18  16128 1965  3996 1024 220 NVIDIA B200 MIG 1g.23gb
"""


def _card(line: str) -> Card:
    key, mib, capability, *numbers, name = line.split(None, 9)
    sms, l2, clock, memory_clock, bus, context = map(int, numbers)
    return Card(
        key, name, int(float(mib) * MIB), capability, sms, l2, clock, memory_clock, bus,
        context * MIB,
    )  # fmt: skip


CARDS = tuple(
    _card(line) for line in _TABLE.splitlines() if line and not line.startswith("#")
)
_BY_KEY = {card.key: card for card in CARDS}
_FOR_A_SIZE = "h100"  # whose other numbers a card of a size asked for has
# What people say, where one card is meant most often.
_ALSO = {
    "a100": "a100-80g",
    "v100": "v100-16g",
    "3090": "rtx3090",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "rtx-a6000": "a6000",
    "rtxa6000": "a6000",
    "h100-sxm": "h100",
    "h100-80g": "h100",
}


def find(text: str) -> Card:
    """The card that ``text`` names: a key of the catalogue, a size such as ``16GiB`` (an H100
    of that memory), or both, ``rtx4090:20GiB``. Raises ValueError with what is close."""
    key, colon, size = text.strip().lower().partition(":")
    key = key.replace("_", "-").replace(" ", "")
    card = _BY_KEY.get(key) or _BY_KEY.get(_ALSO.get(key, ""))
    if card is None and not colon and text[:1].isdigit():
        size, card = text.strip(), _BY_KEY[_FOR_A_SIZE]
        card = replace(card, key="custom", name="GPU of a size asked for (like an H100)")
    elif card is None:
        close = difflib.get_close_matches(key, [*_BY_KEY, *_ALSO], n=4, cutoff=0.4)
        raise ValueError(
            f"{text!r} is no card of the catalogue"
            + (f"; close: {', '.join(close)}" if close else "")
            + ". Accepted: a card (`torcharena rehearse --list-gpus`), a size such as 16GiB, "
            "or a card with a size, rtx4090:20GiB"
        )
    elif not colon:
        return card
    else:
        size = text.strip().partition(":")[2]
    wanted = sizes.parse(size, in_code=False, name="gpu")
    if wanted is None or wanted.bytes is None:
        raise ValueError(f"gpu={text!r}: the memory of a card is a size, such as 16GiB")
    if wanted.bytes <= card.context + 64 * MIB:
        raise ValueError(
            f"gpu={text!r}: the CUDA context alone takes {sizes.format_size(card.context)}"
        )
    return card.of_size(wanted.bytes)


def table() -> str:
    """The catalogue for people."""
    width = max(len(card.key) for card in CARDS)
    lines = [f"{'':<{width}}     memory  capability  SMs  context"]
    lines += [
        f"{card.key:<{width}} {card.memory / (1 << 30):6.2f} GiB  {card.capability:>10} "
        f"{card.sms:>4}  {card.context // MIB:>3} MiB"
        for card in CARDS
    ]
    lines.append(
        "Totals: read from a GPU for "
        + ", ".join(sorted(_MEMORY_MEASURED))
        + ", published ones for the others. Contexts: measured for "
        + ", ".join(sorted(_CONTEXT_MEASURED))
        + ", usual sizes, not measured, for the others. The code of libraries comes on top "
        f"as it is loaded: up to {_LIBRARIES // MIB} MiB on an H200."
    )
    return "\n".join(lines)


def as_c() -> str:
    """``csrc/simcuda/cards.inc``."""
    head = "/* Generated from python/torcharena/rehearsal/cards.py: edit that. */\n"
    return head + "\n".join(card.as_c() for card in CARDS) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_c())
