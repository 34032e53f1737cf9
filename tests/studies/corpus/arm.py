"""Release models for `cpu` and `arm64-v8.2` together, pull the latter, and replay it.

python -m tests.studies.corpus.arm sentence_encoder dlrm demo

Without names it is the models of the table in `docs/arm.md`. Each is delivered, released as
`handoff release` does, pulled for ARM64, and opened by the C++ runner under emulation, which
verifies its signature and replays the release's examples. `demo` stands for the demo's models.
FOLDER keeps a row for each, the deliveries, and the home folder with the releases: run again with
the same folder, only what has no row is done. `--write FILE` puts the table between the marks in a
Markdown file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import ArmTarget
from handoff.tasks.compile.arm.emulation import emulation_command
from handoff.tasks.probe.build import build_arm_runner
from handoff.tasks.release.jobs import RUNNER_SOURCE
from tests.marked import require_marks, write_between_marks
from tests.studies.corpus.release import deliver_model, keep_row, names_of

TARGET = ArmTarget("v8.2")
# Of each kind those that an emulator comes through in minutes.
CHOSEN = (
    "demo", "sentence_encoder", "mobilenet_v3_small", "patchtst", "graph_classifier",
    "table_resnet", "dlrm", "rechub_dssm", "rechub_din", "rechub_deepfm", "deepctr_deepfm",
)  # fmt: skip
# Large sizes are left out, which the record says: a multiplication takes 7 ns under emulation.
_RECIPE = f"""targets = ["cpu", "{TARGET.slug}"]

[verify]
max_bytes = {512 << 20}
emulated_seconds = 180
"""
# The product's own environment: the corpus' has the models' packages beside it.
_HANDOFF = Path(".venv/bin/handoff")
_RELEASE_LIMIT_S = 3 * 3600.0
_REPLAY_LIMIT_S = 1800.0
_ROWS_FILE = "rows.jsonl"
_MARKS = "corpus on ARM64"


@dataclass(frozen=True)
class ArmRow:
    """What happened to a model's package for ARM64.

    `calls` are the cases of the plan, `largest` is the largest difference from eager on ordinary
    inputs, and `replayed` that of the pulled package from the release's examples. `release_s` is
    the whole command, for both targets; the others are the steps of this one. `load` is the
    machine's at the beginning.
    """

    name: str
    refused: str = ""
    calls: int = 0
    largest: float = 0.0
    replayed: float = 0.0
    compile_s: float = 0.0
    verify_s: float = 0.0
    probe_s: float = 0.0
    replay_s: float = 0.0
    release_s: float = 0.0
    pulled_bytes: int = 0
    load: float = 0.0


class _Workspace:
    """A model's folder, and the home folder that all models of a run share."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name.replace("_", "-")
        self.delivery, self.pulled = folder / name / "delivery", folder / name / "pulled"
        self.home, self.recipe = folder / "home", folder / name / "recipe.toml"
        self._log = folder / name / "log"

    def handoff(self, *arguments: str) -> tuple[int, str]:
        """Return the exit status of a command, and what it printed."""
        command = [str(_HANDOFF.absolute()), *arguments]
        return self._run(command, _RELEASE_LIMIT_S)

    def runner(self, *arguments: str) -> tuple[int, str]:
        """Return the same of the C++ runner for ARM64, under emulation."""
        program, _ = build_arm_runner(RUNNER_SOURCE, self.home / "builds" / "programs")
        return self._run(emulation_command(TARGET, program, arguments), _REPLAY_LIMIT_S)

    def _run(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
        environment = {**os.environ, "HANDOFF_HOME": str(self.home)}
        environment.pop("HANDOFF_STORE", None)
        with self._log.open("a", encoding="utf-8") as log:
            print("$", *command, file=log, flush=True)
            ended = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=limit_s,
                check=False, env=environment,
            )  # fmt: skip
            print(ended.stdout, file=log, flush=True)
        return ended.returncode, ended.stdout

    @property
    def log(self) -> Path:
        """What the commands printed."""
        return self._log


def release_for_both(name: str, folder: Path) -> ArmRow:
    """Take one model from its delivery to the replay of the pulled package, in `folder`."""
    workspace = _Workspace(name, folder)
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir(parents=True)
    workspace.recipe.write_text(_RECIPE, encoding="ascii")
    row = ArmRow(name, load=round(os.getloadavg()[0], 1))
    try:
        deliver_model(name, workspace.delivery)
    except HandoffError as error:
        return replace(row, refused=f"deliver: {error}")
    began = time.monotonic()
    status, printed = workspace.handoff(
        "release", str(workspace.delivery), "--recipe", str(workspace.recipe), "--json"
    )
    row = _with_release(row, printed, workspace)
    row = replace(row, release_s=time.monotonic() - began)
    if status:
        return replace(
            row, refused=row.refused or f"release: exit status {status}: {workspace.log}"
        )
    return row if row.refused else _with_pulled(row, workspace)


def _with_release(row: ArmRow, printed: str, workspace: _Workspace) -> ArmRow:
    manifest: dict[str, Any] = json.loads(printed) if printed.startswith("{") else {}
    own = [target for target in manifest.get("targets", ()) if target["slug"] == TARGET.slug]
    if not own:
        return replace(row, refused=f"release: {manifest.get('error') or f'see {workspace.log}'}")
    (target,) = own
    took = _step_seconds(workspace)
    return replace(
        row,
        refused="" if target["accepted"] else f"verdict: {(target['reasons'] or ['?'])[0]}",
        calls=len({deviation["case"] for deviation in target["deviations"]}),
        largest=target["max_abs"] or 0.0,
        compile_s=target["compile_s"],
        verify_s=took.get("verify", 0.0),
        probe_s=took.get("probe", 0.0),
    )


def _step_seconds(workspace: _Workspace) -> dict[str, float]:
    """Return what the target's steps took the last time, as the progress remembers it."""
    found = {}
    for file in (workspace.home / "times").glob("*"):
        known = json.loads(file.read_text(encoding="utf-8")) if workspace.name in file.name else {}
        for step, seconds in known.items():
            word, _, slug = step.partition(" ")
            if slug == TARGET.slug:
                found[word] = seconds[-1]
    return found


def _with_pulled(row: ArmRow, workspace: _Workspace) -> ArmRow:
    release = f"{workspace.name}@candidate"
    status, _ = workspace.handoff(
        "pull", release, "--for", TARGET.slug, "--to", str(workspace.pulled)
    )
    _, key = workspace.handoff("keys", "show")
    if status:
        return replace(row, refused=f"pull: exit status {status}: {workspace.log}")
    key_file = workspace.pulled.with_name("release.pub")
    key_file.write_text(key, encoding="ascii")
    began = time.monotonic()
    status, printed = workspace.runner(
        "replay", str(workspace.pulled), str(workspace.pulled / "examples.safetensors"),
        "--key", str(key_file), "--name", workspace.name, "--threads", "1,2", "--repeat", "1",
        *_tolerances(Recipe()),
    )  # fmt: skip
    took_s = time.monotonic() - began
    replays = [json.loads(line) for line in printed.splitlines()]
    if status or not replays:
        return replace(row, refused=f"replay: exit status {status}: {workspace.log}")
    return replace(
        row,
        replayed=max(one["max_abs"] for one in replays),
        replay_s=took_s,
        pulled_bytes=sum(file.stat().st_size for file in workspace.pulled.rglob("*.*")),
    )


def _tolerances(recipe: Recipe) -> Iterable[str]:
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        agreed = recipe.tolerance_for(dtype)
        yield from ("--tolerance", f"{dtype}={agreed.atol!r},{agreed.rtol!r}")


def table_of(rows: Sequence[ArmRow]) -> str:
    """Return the rows as a table in Markdown, and a line that sums them up."""
    lines = [
        "| model | verdict | largest difference | calls | compile, verify, probe | "
        "the release, both targets | replayed after the pull | pulled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        reason = shorten(row.refused.replace("|", "/"), 160, placeholder=" …")
        steps = ", ".join(f"{s:.0f} s" for s in (row.compile_s, row.verify_s, row.probe_s))
        replayed = f"{row.replayed:.1e}, {row.replay_s:.0f} s" if row.pulled_bytes else ""
        pulled = f"{row.pulled_bytes / 1e6:.1f} MB" if row.pulled_bytes else ""
        lines.append(
            f"| {row.name} | {f'refused: {reason}' if reason else 'accepted'} | {row.largest:.1e} |"
            f" {row.calls} | {steps} | {row.release_s:.0f} s | {replayed} | {pulled} |"
        )
    refused = sum(bool(row.refused) for row in rows)
    return "\n".join([*lines, "", f"{refused} of {len(rows)} refused."])


def read_rows(file: Path) -> dict[str, ArmRow]:
    """Return the kept rows by their models' names."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {row.name: row for row in (ArmRow(**json.loads(line)) for line in lines)}


def main() -> int:
    """Release what is missing, print the table; return 1 unless every model is accepted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    require_marks(args.write, _MARKS)
    wanted = names_of(args.names or CHOSEN, parser)
    folder = args.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    rows = read_rows(folder / _ROWS_FILE)
    for name in wanted:
        if name not in rows:
            rows[name] = release_for_both(name, folder)
            keep_row(rows[name], folder / _ROWS_FILE)
            print(table_of([rows[name]]).splitlines()[2], file=sys.stderr, flush=True)
    text = table_of([rows[name] for name in wanted])
    print(text)
    if args.write:
        write_between_marks(args.write, _MARKS, text)
    return int(any(rows[name].refused for name in wanted))


if __name__ == "__main__":
    sys.exit(main())
