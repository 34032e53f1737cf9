"""The seeds' two models by the seeds' own protocol, on the CPU or on a GPU.

python -m tests.benchmarks.seeds          # ResNet-18 at 512, user_model at 1024
python -m tests.benchmarks.seeds --device cuda --precision bf16

Seed 000 called each 200 times and summed the last hundred. Here the contestants are called in
turns: eager, `torch.compile` (max-autotune, with CUDA graphs on a GPU), TorchScript, and Handoff's
variants, compiled as a release does (without its verification: the largest difference to eager is
printed instead). `--precision tf32` is float32 with TF32 allowed in products and convolutions.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from artifacts.recipe import Recipe, Search
from artifacts.steps import CompileJob, OptimizeJob
from artifacts.target import CudaTarget, Target, native_cpu_target
from examples import resnet18, user_model
from infra.console import print_table
from tasks import compile as compiling
from tasks import optimize
from tasks.deliver import deliver
from tasks.float64 import flat_tensors
from tasks.intake import read_delivery
from tasks.loading import SHARED_LIBRARY, open_shared_library
from tasks.plan import CaseSpec
from tests.benchmarks.served.competitors import (
    open_compiled,
    open_eager,
    run_torchscript,
    trace,
)
from tests.benchmarks.served.turns import Ratio

Tensors = tuple[torch.Tensor, ...]
_SUBJECTS: dict[str, tuple[Any, int]] = {
    "resnet18": (resnet18, 512),
    "user_model": (user_model, 1024),
}
_DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
           "fp16": torch.float16}  # fmt: skip
_VARIANTS = {"cpu": ("plain", "freezing", "channels-last+freezing", "pool-with-attention"),
             "cuda": ("plain", "channels-last", "pool-with-attention")}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    device: str
    precision: str
    runs: int
    batch: int


def main() -> None:
    """Run the protocol for each model and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(_SUBJECTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=tuple(_DTYPES), default="float32")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=0, help="another one than the seed's")
    given = parser.parse_args()
    asked = Asked(given.device, given.precision, given.runs, given.batch)
    for name in given.names:
        with tempfile.TemporaryDirectory(prefix="handoff-seeds-") as scratch:
            _run(name, asked, Path(scratch))


def _run(name: str, asked: Asked, folder: Path) -> None:
    example, batch = _SUBJECTS[name]
    batch = asked.batch or batch
    load = psutil.getloadavg()[0]
    module, inputs = _deliver(example, name, batch, asked, folder / "delivery")
    with torch.no_grad(), _precision(asked):
        calls, missing = _contestants(module, inputs, asked, folder)
        want = flat_tensors(calls["eager"](inputs))
        apart = {n: _apart(flat_tensors(call(inputs)), want) for n, call in calls.items()}
        seconds = _protocol(calls, inputs, asked)
    rows = []
    for contestant, own in seconds.items():
        ratio = Ratio.of(seconds["eager"], own)
        rows.append((contestant, f"{sum(own):.2f}", str(ratio) if contestant != "eager" else "1",
                     f"{apart[contestant]:.1e}"))  # fmt: skip
    title = (f"{name}, batch {batch}, {asked.precision} on {_named(asked.device)}, the last "
             f"{len(seconds['eager'])} of {asked.runs} runs, load before: {load:.1f}")  # fmt: skip
    print_table(title, ("what", "seconds", "times eager's speed", "largest difference"), rows)
    for contestant, why in missing.items():
        print(f"no {contestant}: {why}")


def _deliver(
    example: Any, name: str, batch: int, asked: Asked, folder: Path
) -> tuple[nn.Module, Tensors]:
    """Deliver the model; return it as it was delivered, with inputs for the batch."""
    module, inputs, *options = example.build()
    kept = {k: v for k, v in (options[0] if options else {}).items() if k != "name"}
    dtype = _DTYPES[asked.precision]
    cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    deliver(module.eval().to(dtype), cast, folder, name=name.replace("_", "-"), **kept)
    delivery = read_delivery(folder)
    drawn = delivery.draw(CaseSpec("benchmark", {"batch": batch}, 0))
    return delivery.module.to(asked.device), tuple(x.to(asked.device) for x in drawn)


def _contestants(
    module: nn.Module, inputs: Tensors, asked: Asked, folder: Path
) -> tuple[dict[str, Callable[[Tensors], Any]], dict[str, str]]:
    makers: dict[str, Callable[[], Callable[[Tensors], Any]]] = {
        "eager": lambda: open_eager(module),
        # A copy, since what is compiled is kept beside the code that it was made from.
        "torch.compile max-autotune": lambda: open_compiled("max-autotune")(copy.deepcopy(module)),
        "TorchScript": lambda: run_torchscript(trace(module, inputs)),
    }
    for variant in _VARIANTS[asked.device]:
        makers[f"Handoff, {variant}"] = lambda variant=variant: _compiled(  # type: ignore[misc]
            variant, asked.device, folder
        )
    calls, missing = {}, {}
    for name, make in makers.items():
        try:
            calls[name] = make()
            calls[name](inputs)
        except Exception as error:  # noqa: BLE001 - what can't be made is a result
            calls.pop(name, None)
            missing[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"[:300]
    return calls, missing


def _compiled(variant: str, device: str, folder: Path) -> Callable[[Tensors], Any]:
    """Optimize and compile a variant as a release does; raise where it would be the plain one."""
    plain = variant == "plain"
    variation = None if plain else Search.variation(variant)
    passes = variation.passes if variation else ()
    recipe = Recipe(passes=(*Recipe().passes, *passes))
    out = folder / variant
    found = optimize.run(OptimizeJob(folder / "delivery", out / "program", recipe))
    if passes and not any(e.modified for e in found.effects[-len(passes) :]):
        raise RuntimeError("nothing to change")
    options = dict(variation.options) if variation else {}
    compiling.run(CompileJob(found.program, _target(device), out / "package", options))
    return open_shared_library(out / "package" / SHARED_LIBRARY, device)


def _target(device: str) -> Target:
    if device == "cpu":
        return native_cpu_target()
    major, minor = torch.cuda.get_device_capability()
    return CudaTarget(major * 10 + minor)


def _protocol(
    calls: dict[str, Callable[[Tensors], Any]], inputs: Tensors, asked: Asked
) -> dict[str, list[float]]:
    """Call each in turns, `runs` times; return the seconds of the last half."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(asked.runs):
        for name, call in calls.items():
            began = time.perf_counter()
            call(inputs)
            if asked.device == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    return {name: own[asked.runs // 2 :] for name, own in seconds.items()}


@contextmanager
def _precision(asked: Asked) -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if asked.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = asked.precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _apart(got: Tensors, want: Tensors) -> float:
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(got, want, strict=True))


def _named(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"the CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
