"""MLflow's way to a released package: `mlflow.pyfunc.load_model("models:/ranker@candidate")`.

    model = mlflow.pyfunc.load_model(uri, model_config={"keys": "team.pub", "name": "ranker"})
    model.predict({"ids": ids, "features": features})

A package is opened only after the release's signature and the file's digest were verified with a
key that this machine trusts (`HANDOFF_TRUSTED_KEYS`, or those in `HANDOFF_HOME`). Only where it
trusts none, those of `model_config` are taken: MLflow mixes it with what its file MLmodel says.
That file is signed by nobody. Who may change it may name another loader than this one, with any
code: where MLflow's store can't be trusted, pull from the object store and load that folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.errors import InputsRefused, UsageProblem
from handoff.artifacts.serve.loader import LoadedModel, load
from handoff.infra.settings import read_settings

if TYPE_CHECKING:
    import numpy as np
    import torch

_SETTINGS = {"keys", "name", "version", "target"}


class ServedModel:
    """What MLflow calls: arrays by input name to arrays by output name."""

    def __init__(self, model: LoadedModel) -> None:
        """Serve a model that was loaded."""
        self._model = model

    def predict(self, data: object) -> Any:  # noqa: ANN401 - MLflow's own entry, any of its forms
        """Return the outputs as arrays by name; one array where there is one output.

        `data` is a mapping of arrays or lists by input name, a DataFrame with a column for each
        input, or for one input its array; MLflow has compared it with its signature before. Raises
        `MlflowException`, which a server answers with status 400, for inputs that the model
        doesn't take.
        """
        signature = self._model.signature
        try:
            values = _name_inputs(data, [spec.name for spec in signature.inputs])
            tensors = [_to_tensor(spec, values[spec.name]) for spec in signature.inputs]
            outputs = self._model.tensors(*tensors)
        except InputsRefused as error:
            from mlflow.exceptions import MlflowException

            raise MlflowException.invalid_parameter_value(str(error)) from error
        arrays = {
            spec.name: _to_array(output)
            for spec, output in zip(signature.outputs, outputs, strict=True)
        }
        return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> ServedModel:
    """Return the model in a folder that MLflow has fetched; verify it before anything is opened.

    `model_config` may have `keys`, and what the signature has to be about: `name` and `version`.
    Raises `PackageRefused`, and `UsageProblem` for a key or a setting that isn't one.
    """
    options = dict(model_config or {})
    if unknown := sorted(set(options) - _SETTINGS):
        raise UsageProblem(
            "model_config has a setting that a release doesn't know",
            expected=f"some of {', '.join(sorted(_SETTINGS))}", got=str(unknown[0])[:60],
            remedy="Leave it out",
        )  # fmt: skip
    keys = options.pop("keys", "")
    if isinstance(keys, str):
        keys = [key for key in keys.split(os.pathsep) if key]
    return ServedModel(load(path, keys=_trusted_keys() or keys, **options))


def _trusted_keys() -> list[str]:
    """Return the places of trusted keys that there are.

    They go before those that a model's configuration names, which MLmodel may bring, unsigned.
    """
    return [path for path in read_settings().stores.trusted if Path(path).exists()]


def _name_inputs(data: object, names: Sequence[str]) -> Mapping[str, Any]:
    """Return the inputs by name, of whatever form MLflow gives."""
    if isinstance(data, Mapping):
        values: Mapping[str, Any] = data
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):
        # A cell of a DataFrame holds one row's values: a number, or a list of them.
        values = {str(name): data[name].tolist() for name in data.columns}  # type: ignore[index]
    elif len(names) == 1:
        values = {names[0]: data}
    else:
        raise _refusal(
            "the inputs have no names", f"some for {', '.join(names)}", _describe_type(data)
        )
    missing = [name for name in names if name not in values]
    if missing:
        raise _refusal("an input is missing", missing[0], ", ".join(map(str, values))[:200])
    return values


def _to_tensor(spec: TensorSpec, values: object) -> torch.Tensor:
    """Return an input as a tensor; lists take the declared dtype, arrays keep their own."""
    import numpy as np
    import torch

    try:
        if isinstance(values, np.ndarray) and values.dtype != object:
            # torch shares memory with an array only when it may be written to.
            return torch.from_numpy(np.require(values, requirements=["C", "W"]))
        return torch.tensor(np.stack(values).tolist(), dtype=getattr(torch, spec.dtype))  # type: ignore[call-overload]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _refusal(
            f"{spec.name} can't be read as a tensor", str(spec), _describe_type(values)
        ) from error


def _to_array(output: torch.Tensor) -> np.ndarray[Any, Any]:
    import torch

    # numpy has no bfloat16; float32 holds each of its values.
    values = output.float() if output.dtype == torch.bfloat16 else output
    array: np.ndarray[Any, Any] = values.detach().cpu().numpy()
    return array


def _describe_type(values: object) -> str:
    return f"{type(values).__name__} of {getattr(values, 'dtype', 'no dtype')}"


def _refusal(what: str, expected: str, got: str) -> InputsRefused:
    return InputsRefused(
        what, expected=expected, got=got, remedy="Give the model what its signature declares"
    )
