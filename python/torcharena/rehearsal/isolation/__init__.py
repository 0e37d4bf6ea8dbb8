"""A rehearsal leaves no trace: what its script does to files and to services is undone.

    wrapped = isolation.wrap(["python", "train.py"], env)
    try:
        subprocess.run(wrapped.argv, env=wrapped.env)
    finally:
        wrapped.finish()

Two mechanisms; ``status`` says which one this machine allows, by trying it in a child:

layer   a mount namespace of overlays. Everything the command and its children write, rename
        or delete lands in a directory that is taken away. Holds for every program and every
        way of writing, but for /run, sockets, devices, the network, and the paths in
        ``share``.
guard   an audit hook in each Python process. Files that exist are protected from Python code,
        and from torch.save, torch.jit.save and safetensors: the script is refused, and told
        how to go on. What it makes anew is taken away at the end. Other programs it starts,
        C libraries that open files for themselves, and times of access and change are not
        covered (``left`` names what is found afterwards). Caches (HF_HOME, ~/.cache) stay as
        they are.

A killed run leaves nothing either: a small watcher process, in a session of its own, takes
the directory away once neither the caller nor the command is there; should it be killed too,
the next ``wrap`` does.

Services, in both mechanisms:

    what          how it is off
    wandb         WANDB_MODE=disabled
    MLflow        MLFLOW_TRACKING_URI, MLFLOW_REGISTRY_URI: a database that is taken away
    Comet         COMET_MODE=disabled, COMET_START_ONLINE=0, COMET_DISABLE_AUTO_LOGGING=1
    Neptune       NEPTUNE_MODE=offline, the one value that all its clients know
    ClearML       CLEARML_OFFLINE_MODE=1
    SwanLab       SWANLAB_MODE=disabled
    Hub uploads   create_repo, upload_*, create_commit answer and send nothing; downloads work
    telemetry     HF_HUB_DISABLE_TELEMETRY=1, DO_NOT_TRACK=1
    TensorBoard   writes files alone: they go where all files go

A script that names a server in its own code (``mlflow.set_tracking_uri``, ``wandb.init(
mode="online")``) is believed: those are its words, not its environment's.

    wrapping  which mechanism, and the command within it
    layer     a program of its own: the overlays
    guard     a module of the script's process: the audit hook
    files     what is kept, undone or swept away; the watcher"""

from __future__ import annotations

from .wrapping import SWITCHES, Status, Wrapped, forget, status, wrap

__all__ = ["SWITCHES", "Status", "Wrapped", "forget", "status", "wrap"]
