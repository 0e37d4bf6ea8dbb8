"""What torch has no word for: cap, idle pages, bytes lost in partly used pages, page moves,
waits, driver calls. `memory_stats` for programs, `memory_summary` for people."""

from __future__ import annotations

import sys
from typing import Any

from .caps import table
from .caps.caps import SOURCES, device_memory
from .loading import core, pass_on
from .sizes import format_size
from .state import DeviceLike, device_index, needs_cuda, needs_enabled

__all__ = ["CALLS", "memory_stats", "memory_summary"]

CALLS = ("reserve", "create", "map", "access", "unmap", "release", "event")
_ALL = 0  # of the core's (all, small, large)


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """The device's numbers. Peaks are since torch's last reset of peaks; page moves, waits,
    slow requests and driver calls since the process began.

    Bytes end in ``_bytes``, their highest in ``_bytes.peak``; ``wait_seconds`` and
    ``slow_seconds``, the time of requests that needed a page, waits included, are floats;
    ``cap_bytes`` and ``cap_source`` are None where there is no cap; the rest are counts.
    Raises RuntimeError where the arena is not enabled."""
    needs_enabled("memory_stats")
    index = device_index(device)
    needs_cuda()
    raw = core().stats(index)
    cap, source = core().limit(index)
    free, total = _card(index)
    found: dict[str, Any] = {
        "cap_bytes": cap,
        "cap_source": None if cap is None else source,
        "device_bytes": total,
        "device_free_bytes": free,
        "page_bytes": raw["page_bytes"],
    }
    for name, gauge in (
        ("requested_bytes", raw["requested"][_ALL]),
        ("allocated_bytes", raw["allocated"][_ALL]),
        ("active_bytes", raw["active"][_ALL]),
        ("reserved_bytes", raw["reserved"]),
        ("pending_bytes", raw["pending"]),
        ("address_bytes", raw["addresses"]),
        ("allocations", raw["allocations"][_ALL]),
        ("pages", raw["pages"]),
    ):
        found[name], found[f"{name}.peak"] = gauge[0], gauge[1]
    found["idle_bytes"] = raw["idle"]
    found["partly_used_bytes"] = raw["partly_used"]
    found["partly_used_bytes.peak"] = max(
        raw["largest_idle_partly_used"], raw["partly_used"]
    )
    found["spill_budget_bytes"] = raw["host_budget"] or None
    for name, key in (("host_bytes", "host"), ("spilled_bytes", "spilled")):
        found[name], found[f"{name}.peak"] = raw[key][0], raw[key][1]
    found["dropped_bytes"] = raw["dropped"][0]
    found["spill_allocations"] = raw["spill_allocs"]
    found["spill_allocated_bytes"] = raw["spill_bytes"]
    found["to_host_bytes"], found["to_device_bytes"] = raw["to_host"], raw["to_device"]
    found["spill_wait_seconds"] = raw["spill_wait_us"] / 1e6
    found["out_of_memory"] = raw["oom_count"]
    found["retries"] = raw["retry_count"]
    found["page_moves"] = raw["page_moves"]
    found["waits"] = raw["waits"]
    found["wait_seconds"] = raw["wait_us"] / 1e6
    found["slow_allocations"] = raw["slow_allocs"]
    found["slow_seconds"] = raw["slow_us"] / 1e6
    for call in CALLS:
        found[f"driver_calls.{call}"] = raw[f"calls_{call}"]
    found["driver_calls"] = sum(raw[f"calls_{call}"] for call in CALLS)
    found["arenas"], found["streams"] = raw["arenas"], raw["streams"]
    pass_on()
    return found


def memory_summary(device: DeviceLike = None) -> str:
    """The same as a table for people. Raises RuntimeError where the arena is not enabled."""
    index = device_index(device)
    found = memory_stats(index)
    cap = found["cap_bytes"]
    page = format_size(found["page_bytes"])
    lines = [f"torcharena, device {index}: pages of {page}"]
    if cap is None:
        lines.append("cap: none")
    else:
        left = max(cap - found["reserved_bytes"], 0)
        lines.append(
            f"cap: {format_size(cap)} from {SOURCES.get(found['cap_source'], 'elsewhere')}; "
            f"{format_size(left)} left; the CUDA context comes on top"
        )
    lines += [f"cap: {text}" for text in table.shared(index)]
    lines += ["", f"  {'memory':<34}{'now':>12}{'highest':>12}"]
    for label, key in (
        ("asked for by the program", "requested_bytes"),
        ("in use, in blocks", "allocated_bytes"),
        ("freed, a stream still uses it", "pending_bytes"),
        ("reserved: pages held", "reserved_bytes"),
        ("  of it idle, whole pages", "idle_bytes"),
        ("  of it lost in partly used pages", "partly_used_bytes"),
        ("addresses", "address_bytes"),
    ):
        highest = found.get(f"{key}.peak")
        shown = "" if highest is None else format_size(highest)
        lines.append(f"  {label:<34}{format_size(found[key]):>12}{shown:>12}".rstrip())
    ratio = _ratio(found["reserved_bytes.peak"], found["requested_bytes.peak"])
    if ratio is not None:
        lines.append(f"  {'highest reserved over asked for':<34}{'':>12}{ratio:>12.3f}")
    lines += _host_lines(index, found)
    calls = found["driver_calls"]
    kinds = ", ".join(f"{call} {found[f'driver_calls.{call}']:,}" for call in CALLS)
    lines.append("")
    lines.append(
        f"  allocations {found['allocations']:,} live of at most "
        f"{found['allocations.peak']:,}; {found['slow_allocations']:,} needed a page"
    )
    lines.append(
        f"  bringing pages took {found['slow_seconds']:.3f} s, of it waiting for streams "
        f"{found['wait_seconds']:.3f} s"
    )
    lines.append(
        f"  page moves {found['page_moves']:,}; waits {found['waits']:,}; "
        f"retries at the cap {found['retries']:,}; "
        f"out of memory {found['out_of_memory']:,}"
    )
    lines.append(f"  driver calls {calls:,}: {kinds}")
    if found["device_bytes"] is not None:
        lines.append(
            f"  card: {format_size(found['device_free_bytes'])} of "
            f"{format_size(found['device_bytes'])} free, whoever holds the rest"
        )
    return "\n".join(lines) + "\n"


def _host_lines(index: int, found: dict[str, Any]) -> list[str]:
    """What is on the host, why, and what it cost; nothing where nothing ever was."""
    budget = found["spill_budget_bytes"]
    if budget is None and not found["host_bytes.peak"]:
        return []
    lines = ["", f"  {'host memory':<34}{'now':>12}{'highest':>12}"]
    for label, key in (
        ("pinned for this device", "host_bytes"),
        ("  of it holding blocks", "spilled_bytes"),
    ):
        now, highest = format_size(found[key]), format_size(found[f"{key}.peak"])
        lines.append(f"  {label:<34}{now:>12}{highest:>12}")
    if found["dropped_bytes"]:
        lines.append(
            f"  {'asleep, contents dropped':<34}{format_size(found['dropped_bytes']):>12}"
        )
    if budget is not None:
        lines.append(f"  {'allowed, for all devices':<34}{format_size(budget):>12}")
    lines.append(
        f"  {found['spill_allocations']:,} requests went to the host for want of room, "
        f"{format_size(found['spill_allocated_bytes'])} in all"
    )
    offloading = sys.modules.get("torcharena.spill.offload_saved")
    if offloading is not None and (text := offloading.line(index)):
        lines.append(f"  {text}")
    moved = found["to_host_bytes"] + found["to_device_bytes"]
    seconds = found["spill_wait_seconds"]
    rate = f", {moved / seconds / 1e9:.1f} GB/s" if seconds and moved else ""
    lines.append(
        f"  moved {format_size(found['to_host_bytes'])} to the host and "
        f"{format_size(found['to_device_bytes'])} back; waited {seconds:.3f} s for it{rate}"
    )
    return lines


def _card(index: int) -> tuple[int | None, int | None]:
    try:
        return device_memory(index)
    except RuntimeError:  # the driver does not answer, while the numbers are ours
        return None, None


def _ratio(above: int, below: int) -> float | None:
    return above / below if below else None
