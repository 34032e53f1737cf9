"""The seeds' models, and the corpus', by the seeds' own protocol, on the CPU or on a GPU.

python -m tests.studies.benchmarks.seeds      # ResNet-18 at 512, user_model at 1024, float32
python -m tests.studies.benchmarks.seeds --device cuda --precision float32,tf32,bf16,fp16
python -m tests.studies.benchmarks.seeds transformers --device cuda --precision fp16 --keep gpu.json
python -m tests.studies.benchmarks.seeds --prepare packages --target cuda-sm90 --precision fp16

Contestants: eager, `torch.compile` (max-autotune, with CUDA graphs on a GPU), TorchScript, ONNX
Runtime, and Handoff's variants, compiled as a release does it (without its verification: the
largest difference to eager is printed instead), on a GPU natively and as on a machine without one.
They are called in turns in each of several fresh processes; a figure is the median of these, with
the smallest and the largest. With `--keep`, the summary is of all that the file holds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from handoff.artifacts.machine.gpu import host_gpu_capabilities
from handoff.artifacts.recipe.target import CudaTarget, native_cpu_target
from tests.studies.benchmarks.failures import describe_failure
from tests.studies.benchmarks.seeds.asked import DTYPES
from tests.studies.benchmarks.seeds.measured import Measurement, add, keep, read_kept
from tests.studies.benchmarks.seeds.measuring import MeasureOptions, measure, prepare_package
from tests.studies.benchmarks.seeds.report import print_measured, print_summary
from tests.studies.benchmarks.seeds.subjects import Subject, expand, find_subject

_SEEDS = ["resnet18", "user_model"]
# On the CPU a call of ResNet-18 takes a hundred times as long.
_PROCESSES = {"cpu": 3, "cuda": 6}


def main() -> None:
    """Measure each model in each precision, print its table, and a summary of all."""
    args = _parser().parse_args()
    precisions = args.precision.split(",")
    if unknown := [one for one in precisions if one not in DTYPES]:
        sys.exit(f"expected precisions among {', '.join(DTYPES)}, got {', '.join(unknown)}")
    options = MeasureOptions(
        device=args.device,
        target=args.target or _target(args.device, args.prepare),
        runs=args.runs, batch=args.batch,
        processes=args.processes or _PROCESSES[args.device],
        without=tuple(args.without), packages=args.packages,
    )  # fmt: skip
    if args.prepare:
        _prepare(args.names, precisions, options, args.prepare)
        return
    chance = 1 - 2.0 ** (1 - options.processes)
    print(f"Between the smallest and the largest of {options.processes} processes lies the median "
          f"of all that there could be with a probability of {chance:.0%}.")  # fmt: skip
    kept = read_kept(args.keep) if args.keep else []
    for precision in precisions:
        for name in expand(args.names):
            if measured := _measure(name, precision, options):
                add(measured, kept)
                if args.keep:
                    keep(kept, args.keep)
    print_summary(kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=_SEEDS,
                        help="resnet18, user_model, names of the corpus, transformers")  # fmt: skip
    parser.add_argument("--device", choices=tuple(_PROCESSES), default="cpu")
    parser.add_argument("--precision", default="float32", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=0, help="another one than the model's own")
    parser.add_argument("--processes", type=int, default=0, help="3 on the CPU, 6 on a GPU")
    parser.add_argument("--without", action="append", default=[], help="a contestant to leave out")
    parser.add_argument("--packages", type=Path, help="what --prepare has written elsewhere")
    parser.add_argument("--prepare", type=Path, help="cross-compile for --target to this folder")
    parser.add_argument("--target", default="", help="with --prepare: cuda-sm90")
    parser.add_argument("--keep", type=Path, help="a file of what was measured, by several runs")
    return parser


def _target(device: str, prepared: Path | None) -> str:
    """Return the slug of what is here; end with a sentence where that can't be."""
    if prepared:
        sys.exit("expected --target with --prepare, such as cuda-sm90")
    if device == "cpu":
        return native_cpu_target().slug
    here = host_gpu_capabilities()
    return CudaTarget(here[0]).slug if here else sys.exit("expected an NVIDIA GPU here, got none")


def _subject(name: str) -> Subject | None:
    try:
        return find_subject(name)
    except (ImportError, KeyError) as error:
        print(f"no {name}: {describe_failure(error)}")
        return None


def _measure(name: str, precision: str, options: MeasureOptions) -> Measurement | None:
    """Measure and print; None, and why, where the model can't be delivered."""
    subject = _subject(name)
    if subject is None:
        return None
    with tempfile.TemporaryDirectory(prefix="handoff-seeds-") as scratch:
        try:
            measured = measure(subject, precision, options, Path(scratch))
        except Exception as error:  # noqa: BLE001 - the other models can be measured
            print(f"no {name} in {precision}: {describe_failure(error)}")
            return None
    print_measured(measured)
    return measured


def _prepare(
    names: list[str], precisions: list[str], options: MeasureOptions, folder: Path
) -> None:
    for precision in precisions:
        for subject in filter(None, map(_subject, expand(names))):
            try:
                print(prepare_package(subject, precision, options, folder))
            except Exception as failure:  # noqa: BLE001 - the other models can be prepared
                print(f"no {subject.name} in {precision}: {describe_failure(failure)}")


if __name__ == "__main__":
    main()
