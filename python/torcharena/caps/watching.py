"""The administrator's file while the process runs.

A thread looks at the file four times a second and puts what it says now: the next growth
finds it. It also lets the library heed other processes that were refused. One thread a
process, from CUDA's start to the process's end, and none where there is neither a file nor a
ledger. A file that makes no sense, or is gone for a moment, changes nothing."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import Any

from .. import state
from ..loading import core, log, speaks_for_node, warn
from ..sizes import format_size
from . import admin_file, administrator, ledgers, tenants, trust
from .admin_file import AdminFile, Malformed
from .administrator import Admin

__all__ = ["SECONDS", "Watcher", "hold"]

SECONDS = 0.25  # between looks
_STEADY = 1  # looks at which a changed file was the same, an editor having ended
_GONE = 4  # and at which it was not there
_HEED = 4  # looks between two questions of the ledger
_AGAIN = 40  # looks until what did not hold is tried again: its reason may lie elsewhere


def hold(library: Any) -> None:
    """CUDA is up: puts the administrator's caps, opens the ledgers, starts the thread."""
    admin = state.current.admin
    if admin is None:
        return
    if admin.facts.uid != os.getuid():  # forked by a server that is another user's
        admin.facts = tenants.facts()
        rules = admin.file.tenants if admin.file else ()
        admin.tenant = tenants.tenant(rules, admin.facts)
    admin.devices = administrator.devices(library)
    admin.apply(library)
    watched = administrator.path()
    if admin.opened or (watched and os.path.isdir(os.path.dirname(watched))):
        Watcher(admin, watched).start()


class Watcher(threading.Thread):
    """Looks at the file at ``path`` and puts what it says."""

    def __init__(self, admin: Admin, path: str) -> None:
        super().__init__(name="torcharena-limits", daemon=True)
        self._admin, self._path = admin, path
        self._held = admin.file.mark if admin.file else ()
        self._seen, self._looks = self._held, 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Until `stop`."""
        atexit.register(self.stop)
        beats = 0
        while not self._ended.wait(SECONDS):
            beats += 1
            self.beat(beats % _HEED == 0)

    def beat(self, heed: bool) -> None:
        """One look. Nothing ends the thread but `stop`: caps would silently be live no more."""
        try:
            self.look()
            if heed:
                for device in list(self._admin.opened):
                    core().ledger_heed(device)
                self.observe()
        except (
            Warning
        ) as said:  # the program makes errors of warnings; here none would see it
            log.warning("%s", said)
        except (core().Error, OSError) as error:  # maybe the process is ending
            log.debug("the administrator's file could not be looked at: %s", error)

    def stop(self) -> None:
        """Returns when the thread has ended, or soon will."""
        self._ended.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout=2)

    def look(self) -> None:
        """Puts what the file says if it is another than before, and steady."""
        mark = trust.mark(self._path) if self._path else ()
        if mark != self._seen:
            self._seen, self._looks = mark, 0
            return
        self._looks += 1
        if mark == self._held or self._looks < (_STEADY if mark else _GONE):
            return
        self._looks = -_AGAIN
        try:
            file = admin_file.load(self._path)
        except Malformed as error:
            warn(f"torcharena: {error}; what it said before holds on")
            return
        with state.lock:
            if self._put(file):
                self._held = mark

    def observe(self) -> None:
        """In mode observe: says so, once, where a cap on the process would have held."""
        admin = self._admin
        if admin.mode != "observe":
            return
        for device in admin.devices:
            cap = admin.least("process", device)
            peak = core().stats(device.index)["reserved"][1]
            if cap is not None and peak > cap:
                warn(
                    f"torcharena: this process has held {format_size(peak)} on device "
                    f"{device.index}; enforced, {admin.where(device.index)} would have capped "
                    f"it at {format_size(cap)}"
                )
                return

    def _put(self, file: AdminFile | None) -> bool:
        admin = self._admin
        before = admin.file, admin.place, admin.tenant
        place = ledgers.choose(file, admin.wanted)
        if not admin.opened:
            admin.place = place
        elif place.path not in ("", admin.place.path):
            text = f"torcharena: this process is counted in {admin.place.path} until its end; "
            warn(text + f"{place.by or 'others'} says {place.path} now")
        who = tenants.tenant(file.tenants if file else (), admin.facts)
        if admin.opened and who.name != admin.tenant.name:
            text = f"torcharena: this process stays with tenant {admin.tenant.name} until its "
            warn(text + f"end; the administrator's file says {who.name} now")
            who = tenants.Tenant(
                admin.tenant.name, admin.tenant.claimed, who.by, who.rule
            )
        admin.file, admin.tenant = file, who
        try:
            admin.apply(core())
        except RuntimeError as error:
            admin.file, admin.place, admin.tenant = before
            with contextlib.suppress(RuntimeError):  # some of it was put
                admin.apply(core())
            warn(f"torcharena: {error}; what it said before holds on")
            return False
        if speaks_for_node():
            log.info("%s says otherwise now: %s", self._path, said(admin))
        return True


def said(admin: Admin) -> str:
    """The caps on the first device, in a few words."""
    if admin.file is None:
        return "it is gone, and with it its caps"
    device = admin.devices[0] if admin.devices else None
    caps = {scope: admin.least(scope, device) for scope in admin_file.SCOPES}
    held = [
        f"{scope} {format_size(size)}" for scope, size in caps.items() if size is not None
    ]
    return f"mode {admin.mode}, " + (", ".join(held) or "no caps")
