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
from tests.studies.benchmarks.seeds.asked import DTYPES, Making, Playing
from tests.studies.benchmarks.served.competitors import Flat, Tensors

# One word for the corpus' transformers, and their names.
TRANSFORMERS = "transformers"
_TRANSFORMERS = ("bert", "gpt2", "t5_encoder", "sentence_encoder", "wav2vec2", "whisper_encoder",
                 "vit_small", "timm_vit_tiny")  # fmt: skip


class Made(NamedTuple):
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
    make: Callable[[], Made]
    has_loss: bool = False

    def deliver(self, precision: str, folder: Path) -> None:
        """Deliver the model in this precision to the folder."""
        made = _in_precision(self.make(), precision)
        deliver(made.module, made.args, folder, name=self.name.replace("_", "-"),
                example_kwargs=made.kwargs, **made.options)  # fmt: skip

    def served(self, precision: str, delivery: LoadedDelivery) -> Flat:
        """Return what others than Handoff serve: the model, called with tensors one by one.

        Not what was delivered, where that can be: some captures know the CPU alone.
        """
        if self.has_loss:
            return Flat(delivery.module, _InOrder())
        made = _in_precision(self.make(), precision)
        call, _ = describe_call(made.module, made.args, made.kwargs)
        return Flat(made.module, call)


class _InOrder:
    """The call of a module that takes its tensors one by one already."""

    def bind(self, values: Tensors) -> tuple[Tensors, dict[str, Any]]:
        return values, {}


def _in_precision(made: Made, precision: str) -> Made:
    dtype = DTYPES[precision]

    def cast(leaf: Any) -> Any:
        is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_real else leaf

    module = made.module.eval().requires_grad_(False).to(dtype)
    args, kwargs = pytree.tree_map(cast, (made.args, made.kwargs))
    return Made(module, args, kwargs, made.options)


def find_subject(name: str) -> Subject:
    """Return the model of this name: a seed's, or else one of the corpus.

    Raises `KeyError` for a name that neither has, and `ImportError` without the corpus' packages.
    """
    if name in _SEEDS:
        return _SEEDS[name]
    # Here, since the seeds' two need none of its packages.
    from tests.studies.corpus.models import MODELS

    found = {model.name: model for model in MODELS}[name]

    def make() -> Made:
        module, (args, kwargs) = found.make()
        return Made(module, args, kwargs, found.options)

    return Subject(name, found.batch, make)


def expand(names: list[str]) -> list[str]:
    """Return the names, with `transformers` written out."""
    return [one for name in names for one in (_TRANSFORMERS if name == TRANSFORMERS else (name,))]


def prepare(job: Making | Playing) -> tuple[Flat, Tensors]:
    """Return what others than Handoff serve, and the inputs of a call, on the job's device."""
    delivery = read_delivery(job.delivery)
    drawn = delivery.draw(CaseSpec("benchmark", {"batch": job.batch}, 0))
    model = find_subject(job.model).served(job.precision, delivery).eval()
    return model.to(job.device), tuple(tensor.to(job.device) for tensor in drawn)


def _seed(example: Any) -> Callable[[], Made]:
    def make() -> Made:
        module, args, options = example.build()
        return Made(module, args, {}, {k: v for k, v in options.items() if k != "name"})

    return make


_SEEDS = {
    "resnet18": Subject("resnet18", 512, _seed(resnet18)),
    "user_model": Subject("user_model", 1024, _seed(user_model), has_loss=True),
}
