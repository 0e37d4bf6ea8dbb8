"""What is to leave the device, by what it costs: saved tensors or optimizer state. Pure.

Saved tensors cross the link beside the computing, out in forward and back in backward: they
cost what does not fit beside it. The state's bytes are read and written once a step, with
nothing beside it. So with

    T(state) = passes * (max(0, away / out - forward) + max(0, away / back - backward))
               + state / place,           away = need - state

the cheapest is where T is least; T is made of straight lines, and its least is at a corner."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Choice", "Rates", "Situation", "choose", "seconds"]

_COUNTS = 0.9  # of what is saved, the share that can be away at the peak


@dataclass(frozen=True)
class Rates:
    """Bytes a second: copies to the host, back, and work in place, each way."""

    out: float
    back: float
    place: float
    measured: bool = True


# PCIe 5 x16, until there is something measured.
ASSUMED = Rates(50e9, 50e9, 40e9, measured=False)


@dataclass(frozen=True)
class Situation:
    """Of one device. Bytes in a forward pass, seconds without copies; None: not known yet, and
    taken to be long enough."""

    need: int  # that must leave
    saved: int  # of saved tensors, that could
    state: int  # of optimizer state, that could
    forward: float | None = None
    backward: float | None = None
    passes: int = 1  # in a step


@dataclass(frozen=True)
class Choice:
    """Bytes to be on the host, and the seconds a step that they are expected to cost; ``short``:
    bytes for which there is nothing that could leave."""

    saved: int
    state: int
    seconds: float
    short: int = 0


def seconds(now: Situation, state: int, rates: Rates) -> float:
    """What a step takes longer with ``state`` bytes of state on the host."""
    away = max(now.need - state, 0)
    out = back = 0.0
    if now.forward is not None:
        out = max(0.0, away / rates.out - now.forward)
    if now.backward is not None:
        back = max(0.0, away / rates.back - now.backward)
    return now.passes * (out + back) + state / rates.place


def choose(now: Situation, rates: Rates) -> Choice:
    """The cheapest; of equals the one with the least state away."""
    if now.need <= 0:
        return Choice(0, 0, 0.0)
    can = int(now.saved * _COUNTS)
    most = min(now.state, now.need)
    least = min(max(now.need - can, 0), most)
    corners = [least, most]
    if now.forward is not None:
        corners.append(now.need - int(now.forward * rates.out))
    if now.backward is not None:
        corners.append(now.need - int(now.backward * rates.back))
    best = min(
        sorted({min(max(corner, least), most) for corner in corners}),
        key=lambda state: seconds(now, state, rates),
    )
    away = now.need - best
    short = max(away - can, 0)
    return Choice(away - short, best, seconds(now, best, rates), short)
