"""What flows have to know about the host that they run on: its stores, its key, its folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stores:
    """Where releases are kept, as locations only, and whose signatures are trusted.

    `objects` is a folder or `s3://bucket/prefix`, `tracking_uri` is MLflow's, and `artifact_root`
    is where MLflow keeps artifacts when it runs embedded (empty: where the server says). `trusted`
    are files and folders of public keys, and `seen` is the file that remembers how far each ledger
    went (None: nothing is remembered). Secrets are never part of it: boto3 and MLflow read them
    from the environment of the one child process that gets them.
    """

    objects: str
    tracking_uri: str
    artifact_root: str = ""
    trusted: tuple[str, ...] = ()
    seen: Path | None = None


@dataclass(frozen=True)
class SigningKey:
    """The key that signs: a PEM file or a KMS's address, never the key itself.

    `public` is where the public key lies, or is written to when the key is to be made
    (`make_missing`).
    """

    uri: str
    public: Path
    make_missing: bool = False


@dataclass(frozen=True)
class HostSettings:
    """Where a machine builds, which stores it registers in, and the key that it signs with.

    It is the machine's own affair and never a flow's parameter: workers of one stack have other
    folders. `builds` is the folder of the builds, of which `workspace` is one that is open already
    (None: the flow opens its own). `recipes` holds a `MODEL.toml` for each model that has a recipe
    of its own. `compiler` is the C++ compiler, `by` who asks where a run doesn't say it.
    A machine that `is_worker` of a stack may have others do a part of the work. `has_server` says
    that a Prefect server keeps the runs, whose pages can be linked to.
    """

    builds: Path
    stores: Stores
    key: SigningKey
    compiler: str
    recipes: Path
    by: str
    workspace: Path | None = None
    is_worker: bool = False
    has_server: bool = False
