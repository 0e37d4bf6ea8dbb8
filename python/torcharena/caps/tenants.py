"""Who this process belongs to, for caps that several processes share.

What the kernel says cannot be had by a wish: the uid, and the cgroup's path, in which SLURM
and Kubernetes write the job and the pod. What the environment says is a claim, heard only
where no rule fits what the kernel says, and marked as one. Read once; asks nobody else."""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .admin_file import TenantRule

__all__ = ["Facts", "Tenant", "facts", "places", "tenant"]

_LONGEST = 63  # bytes of a name in the ledger
_UID = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
# From the top of the tree, where users cannot make groups.
_SLURM = (
    re.compile(r"/system\.slice/(?:[\w.-]+_)?slurmstepd\.scope/job_(\d+)(?:/|$)"),
    re.compile(r"/slurm(?:_[\w.-]+)?/uid_\d+/job_(\d+)(?:/|$)"),
)
_POD = re.compile(
    r"/(?:kubelet(?:\.slice)?/)?(?:kubelet-)?kubepods(?:\.slice)?/(?:[\w.-]+/)?"
    rf"(?:[\w.]+-)*pod{_UID}(?:\.slice)?(?:/|$)"
)
# Where a container does not see its cgroup's path: what the kubelet mounts into each pod.
_POD_MOUNT = re.compile(rf"/pods/{_UID}/etc-hosts$")


@dataclass(frozen=True)
class Facts:
    """What is known of the process; "" is not known. Of the claims, nothing is certain."""

    uid: int
    user: str
    cgroups: tuple[str, ...] = ()
    slurm_job: str = ""
    pod: str = ""  # its UID
    claimed_job: str = ""
    claimed_pod: str = ""  # namespace/name

    @property
    def place(self) -> str:
        """The job or pod as metrics name it: ``slurm:12``, ``k8s:namespace/pod``, or ""."""
        if job := self.slurm_job or self.claimed_job:
            return f"slurm:{job}"
        return f"k8s:{self.claimed_pod}" if self.claimed_pod else ""


@dataclass(frozen=True)
class Tenant:
    """A tenant's name, whether it is only a claim, what it is known by, and the rule."""

    name: str
    claimed: bool
    by: str
    rule: TenantRule | None


def facts(environ: Mapping[str, str] | None = None, proc: str = "/proc/self") -> Facts:
    """What is known of this process."""
    environ = os.environ if environ is None else environ
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = ""
    lines = _lines(f"{proc}/cgroup")
    paths = tuple(dict.fromkeys(line.split(":", 2)[2] for line in lines if ":" in line))
    jobs = [found[1] for one in _SLURM for path in paths if (found := one.match(path))]
    pods = [found[1] for path in paths if (found := _POD.match(path))]
    return Facts(
        uid=uid,
        user=user,
        cgroups=paths,
        slurm_job=jobs[0] if jobs else "",
        pod=pods[0].replace("_", "-") if pods else _mounted_pod(proc),
        claimed_job=_number(environ.get("SLURM_JOB_ID", "")),
        claimed_pod=_claimed_pod(environ),
    )


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _number(text: str) -> str:
    return text if text.isascii() and text.isdigit() else ""


def _mounted_pod(proc: str) -> str:
    if _lines(f"{proc}/uid_map") != ["         0          0 4294967295"]:
        return ""  # in a user namespace anybody mounts
    for line in _lines(f"{proc}/mountinfo"):
        fields = line.split(" ")
        if len(fields) > 4 and fields[4] == "/etc/hosts":
            found = _POD_MOUNT.search(fields[3])
            return found[1] if found else ""
    return ""


def _claimed_pod(environ: Mapping[str, str]) -> str:
    """By the usual names of the downward API, else by what every pod has."""
    if "POD_NAME" not in environ and "KUBERNETES_SERVICE_HOST" not in environ:
        return ""
    name = environ.get("POD_NAME") or environ.get("HOSTNAME", "")
    space = environ.get("POD_NAMESPACE", "")
    if not space:
        mounted = _lines("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
        space = mounted[0] if mounted else "default"
    return f"{space}/{name}" if name else ""


def tenant(rules: tuple[TenantRule, ...], known: Facts) -> Tenant:
    """The tenant by the first rule that fits what the kernel says; else by the first that
    fits a claim; else the user is the tenant."""
    for fits in (_fits, _fits_claim):
        for rule in rules:
            if found := fits(rule, known):
                name = _short(rule.name or found.name)
                return replace(found, name=name, rule=rule)
    return Tenant(_short(_user(known)), False, f"uid {known.uid}", None)


def _fits(rule: TenantRule, known: Facts) -> Tenant | None:
    if rule.kind == "user" and _among(rule, known.user, str(known.uid)):
        return Tenant(_user(known), False, f"uid {known.uid}", rule)
    if rule.kind == "slurm_job" and known.slurm_job and _among(rule, known.slurm_job):
        name = f"job-{known.slurm_job}"
        return Tenant(name, False, f"SLURM job {known.slurm_job}", rule)
    if rule.kind == "pod" and known.pod and _among(rule, known.pod):
        return Tenant(f"pod-{known.pod}", False, f"pod {known.pod}", rule)
    if rule.kind == "cgroup":
        for path in known.cgroups:
            if any(fnmatch.fnmatchcase(path, value) for value in rule.values):
                return Tenant(path, False, f"cgroup {path}", rule)
    return None


def _fits_claim(rule: TenantRule, known: Facts) -> Tenant | None:
    if rule.kind == "slurm_job" and not known.slurm_job and known.claimed_job:
        job = known.claimed_job
        if _among(rule, job):
            return Tenant(f"job-{job}", True, f"SLURM_JOB_ID={job}", rule)
    if rule.kind == "pod" and known.claimed_pod:
        pod = known.claimed_pod
        # A pod that the kernel names is not that of a rule for another UID.
        if any("/" in value or value == "*" for value in rule.values) and any(
            fnmatch.fnmatchcase(pod, value) for value in rule.values
        ):
            return Tenant(pod, True, f"pod {pod}", rule)
    return None


def _among(rule: TenantRule, *names: str) -> bool:
    return "*" in rule.values or any(name in rule.values for name in names if name)


def _user(known: Facts) -> str:
    return known.user or f"uid-{known.uid}"


def _short(name: str) -> str:
    """As many bytes as the ledger keeps, of its end, which tells paths apart."""
    raw = name.encode("utf-8", "replace")
    return name if len(raw) <= _LONGEST else raw[-_LONGEST:].decode("utf-8", "ignore")


def places(place: str) -> tuple[str, str, str]:
    """SLURM job, Kubernetes namespace and pod of a `Facts.place`; "" for what it is not."""
    kind, _, name = place.partition(":")
    if kind == "slurm":
        return name, "", ""
    space, _, pod = name.partition("/")
    return ("", space, pod) if kind == "k8s" else ("", "", "")
