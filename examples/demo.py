"""The demo: two models from their training side to the registry, with the command line alone.

    make demo

For each it runs `handoff deliver`, `inspect` and `release`, as a person would. It ends with a table
of eager against the `.so`, measured while they were released. Run again, it finds the releases that
were made before: nothing has changed since.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from handoff.artifacts.release.interval import Interval
from handoff.infra.terminal.console import print_table, seconds

MODELS = (("resnet18", "examples.resnet18:build"), ("user-model", "examples.user_model:build"))
DELIVERIES = Path(".demo")


def main() -> int:
    """Deliver, inspect and release each model; print what was measured; return the exit code."""
    released = []
    for name, factory in MODELS:
        delivery = DELIVERIES / name
        commands = [["inspect", str(delivery)]]
        if _is_stale(delivery, factory):
            shutil.rmtree(delivery, ignore_errors=True)
            commands.insert(0, ["deliver", factory, "--to", str(delivery), "--name", name])
        for command in commands:
            if code := _run(command).returncode:
                return code
        result = _run(["release", str(delivery), "--json"], capture=True)
        if result.returncode:
            sys.stdout.write(result.stdout)
            return result.returncode
        released.append(json.loads(result.stdout))
    _print_outcome(released)
    return 0


def _is_stale(delivery: Path, factory: str) -> bool:
    """Return whether the delivery is missing, or older than the module that makes the model."""
    contract = delivery / "delivery.toml"
    source = Path(factory.partition(":")[0].replace(".", "/") + ".py")
    return not contract.exists() or contract.stat().st_mtime < source.stat().st_mtime


def _run(arguments: list[str], *, capture: bool = False) -> subprocess.CompletedProcess[str]:
    print(f"\n$ handoff {' '.join(arguments)}", flush=True)  # noqa: T201 - this is a program
    handoff = Path(sys.executable).with_name("handoff")
    return subprocess.run(
        [str(handoff), *arguments],
        check=False,
        text=True,
        stdout=subprocess.PIPE if capture else None,
    )


def _print_outcome(released: list[dict[str, Any]]) -> None:
    rows = []
    for release in released:
        for target in release["targets"]:
            error = target["max_abs"]
            for timing in target["timings"]:
                rows.append(
                    (
                        f"{release['model']} version {release['version']}",
                        f"{target['slug']}: {'accepted' if target['accepted'] else 'refused'}",
                        timing["case"],
                        seconds(timing["eager_s"]),
                        seconds(timing["package_s"]),
                        Interval(
                            timing["speedup"], timing["speedup_low"], timing["speedup_high"]
                        ).text,
                        f"{error:.1e}",
                    )
                )
    columns = (
        "released", "verdict", "input", "eager", "package", "speed-up (95 %)", "largest error",
    )  # fmt: skip
    print_table("Eager and the package, one call, on this machine", columns, rows)
    print(  # noqa: T201 - this is a program
        "Eager and the package took turns, and the speed-up is the median over those turns, not\n"
        "the quotient of the two columns. 'not known': the machine was too busy to tell.\n\n"
        "Where to look next:\n"
        "  .venv/bin/handoff list\n"
        "  .venv/bin/handoff show resnet18@candidate\n"
        "  .venv/bin/handoff pull resnet18@candidate --to pulled-resnet18\n"
        "  .venv/bin/handoff ui            MLflow, with both models in its registry"
    )


if __name__ == "__main__":
    sys.exit(main())
