"""python -m tests.tasks.intake.fuzz COUNT [SEED]: mutate deliveries; typed refusals and no code.

Three deliveries are mutated: one as `to_folder` writes a graph of layers, one as the exporter
writes a graph of operators, with its contract, examples and source lines, and one with a text
wherever a delivery has one. A third of the mutations change nothing but a text or a name: none of
those texts may be in a graph that is read. None may take more than a minute, or 4 GiB. Prints a
table of outcomes.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from handoff.artifacts.errors import HandoffError
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from tests.tasks.intake.attacks.text_places import write_delivery
from tests.tasks.intake.models import deliver_case
from tests.tasks.intake.mutations import (
    MARK,
    PIECES,
    Places,
    Watch,
    mutate,
    mutate_pickle,
    mutate_text,
)

_BAD = (
    "other exceptions", "refused without a reason", "refused with what can't be shown",
    "read with a text of somebody else's",
)  # fmt: skip
_MOST_S, _MOST_BYTES = 60.0, 4 << 30


class Branches(nn.Module):
    """What only torch.export captures."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return scores; `len` keeps torch.fx away."""
        pooled = self.table(ids).sum(1) / len(ids)
        return {"scores": self.layer(pooled * scale), "pooled": pooled}


def make_deliveries(folder: Path) -> list[dict[str, bytes]]:
    """Return three deliveries as files by name."""
    (folder / "layers").mkdir()
    deliver_case("attention", folder / "layers")
    deliver(
        Branches().eval(), (torch.randint(0, 20, (6, 3)),), folder / "operators",
        name="operators", example_kwargs={"scale": torch.rand(6, 8)},
    )  # fmt: skip
    write_delivery(folder / "texts")
    found = []
    for place in ("layers", "operators", "texts"):
        read_delivery(folder / place)
        found.append({path.name: path.read_bytes() for path in (folder / place).iterdir()})
    return found


def draw(dice: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files with one of them mutated, in one text or in one to three places."""
    name = dice.choice(sorted(files))
    if dice.random() < 1 / 3:
        return files | {name: mutate_text(name, files[name], dice)}
    places: Places = [
        (dice.random(), dice.randint(0, 6), dice.choice(PIECES)) for _ in range(dice.randint(1, 3))
    ]
    inside = name.endswith(".pt") and dice.random() < 0.5
    changed = mutate_pickle(files[name], places) if inside else mutate(files[name], places)
    return files | {name: changed}


def main(count: int, seed: int) -> int:
    """Run `count` mutations; return 1 if one was not refused properly or executed something."""
    torch.set_num_threads(1)
    dice, watch, outcomes = random.Random(seed), Watch(), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        deliveries = make_deliveries(Path(scratch))
    began, slowest = time.monotonic(), 0.0
    for number in range(count):
        files = draw(dice, dice.choice(deliveries))
        with tempfile.TemporaryDirectory() as temporary:
            for name, content in files.items():
                (Path(temporary) / name).write_bytes(content)
            started = time.monotonic()
            outcomes[_try(Path(temporary), watch)] += 1
            slowest = max(slowest, time.monotonic() - started)
        if (number + 1) % 10_000 == 0:
            print(number + 1, dict(outcomes), file=sys.stderr, flush=True)
    # Linux counts in KiB.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{count} mutations, seed {seed}: {dict(outcomes)}; executed: {len(watch.seen)}; "
          f"slowest {slowest:.2f} s, all in {time.monotonic() - began:.0f} s, "
          f"at most {most / 2**30:.2f} GiB")  # fmt: skip
    is_costly = slowest > _MOST_S or most > _MOST_BYTES
    return 1 if watch.seen or is_costly or any(outcomes[bad] for bad in _BAD) else 0


def _try(folder: Path, watch: Watch) -> str:
    watch.on = True
    try:
        loaded = read_delivery(folder)
    except HandoffError as error:
        if not str(error).isprintable():
            print(f"can't be shown: {error!r}", file=sys.stderr)
            return "refused with what can't be shown"
        return "refused" if error.got and error.remedy else "refused without a reason"
    except Exception:  # noqa: BLE001 - that is what is looked for
        traceback.print_exc()
        return "other exceptions"
    finally:
        watch.on = False
    return "read with a text of somebody else's" if _holds_mark(loaded) else "read"


def _holds_mark(loaded: LoadedDelivery) -> bool:
    nodes = loaded.module.graph.nodes
    texts = [loaded.module.code, *loaded.module.state_dict()]
    texts += [f"{node.target} {node.args} {node.kwargs} {node.meta}" for node in nodes]
    marked = [text for text in texts if MARK in text]
    for text in marked:
        print(f"read: {text}", file=sys.stderr)
    return bool(marked)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
