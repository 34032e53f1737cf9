"""The models: the seeds' two of `examples/`, and those of the corpus, in its environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from examples import resnet18, user_model
from handoff.tasks.deliver.capture.calls import describe_call
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from handoff.tasks.verify.inputs.plan import CaseSpec
from tests.studies.benchmarks.seeds.asked import DTYPES, MakeJob, PlayJob
from tests.studies.benchmarks.served.competitors import FlatModule, Tensors

# One word for the corpus' transformers, and their names.
TRANSFORMERS = "transformers"
_TRANSFORMERS = ("bert", "gpt2", "t5_encoder", "sentence_encoder", "wav2vec2", "whisper_encoder",
                 "vit_small", "timm_vit_tiny")  # fmt: skip


class FactoryResult(NamedTuple):
    """A module, the arguments and keywords of a call, and further options of `deliver`."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model, how it is made, and the batch that it is timed at unless another is asked for.

    `has_loss` tells that its forward ends in a loss, which a delivery leaves out, so that everybody
    serves what was delivered.
    """

    name: str
    batch: int
    make: Callable[[], FactoryResult]
    has_loss: bool = False

    def deliver(self, precision: str, folder: Path) -> None:
        """Deliver the model in this precision to the folder."""
        result = _cast_to(self.make(), precision)
        deliver(result.module, result.args, folder, name=self.name.replace("_", "-"),
                example_kwargs=result.kwargs, **result.options)  # fmt: skip

    def served(self, precision: str, delivery: LoadedDelivery) -> FlatModule:
        """Return what others than Handoff serve: the model, called with tensors one by one.

        Not what was delivered, where that can be: some captures know the CPU alone.
        """
        if self.has_loss:
            return FlatModule(delivery.module, _PositionalCall())
        result = _cast_to(self.make(), precision)
        call, _ = describe_call(result.module, result.args, result.kwargs)
        return FlatModule(result.module, call)


class _PositionalCall:
    """The call of a module that takes its tensors one by one already."""

    def bind(self, values: Tensors) -> tuple[Tensors, dict[str, Any]]:
        return values, {}


def _cast_to(result: FactoryResult, precision: str) -> FactoryResult:
    dtype = DTYPES[precision]

    def cast(leaf: Any) -> Any:
        is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_real else leaf

    module = result.module.eval().requires_grad_(False).to(dtype)
    args, kwargs = pytree.tree_map(cast, (result.args, result.kwargs))
    return FactoryResult(module, args, kwargs, result.options)


def find_subject(name: str) -> Subject:
    """Return the model of this name: a seed's, or else one of the corpus.

    Raises `KeyError` for a name that neither has, and `ImportError` without the corpus' packages.
    """
    if name in _SEEDS:
        return _SEEDS[name]
    # Here, since the seeds' two need none of its packages.
    from tests.studies.corpus.models import MODELS

    found = {model.name: model for model in MODELS}[name]

    def make() -> FactoryResult:
        module, (args, kwargs) = found.make()
        return FactoryResult(module, args, kwargs, found.options)

    return Subject(name, found.batch, make)


def expand(names: list[str]) -> list[str]:
    """Return the names, with `transformers` written out."""
    return [one for name in names for one in (_TRANSFORMERS if name == TRANSFORMERS else (name,))]


def prepare(job: MakeJob | PlayJob) -> tuple[FlatModule, Tensors]:
    """Return what others than Handoff serve, and the inputs of a call, on the job's device."""
    delivery = read_delivery(job.delivery)
    drawn = delivery.draw(CaseSpec("benchmark", {"batch": job.batch}, 0))
    model = find_subject(job.model).served(job.precision, delivery).eval()
    return model.to(job.device), tuple(tensor.to(job.device) for tensor in drawn)


def _factory_of(example: Any) -> Callable[[], FactoryResult]:
    def make() -> FactoryResult:
        module, args, options = example.build()
        return FactoryResult(module, args, {}, {k: v for k, v in options.items() if k != "name"})

    return make


_SEEDS = {
    "resnet18": Subject("resnet18", 512, _factory_of(resnet18)),
    "user_model": Subject("user_model", 1024, _factory_of(user_model), has_loss=True),
}
