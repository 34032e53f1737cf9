"""Texts in a graph: what torch knows passes, what it doesn't is refused, messages become ours."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.intake.functions import _functions, resolve
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.string_arguments import (
    MESSAGES,
    TextRefused,
    check_attribute,
    check_texts,
)
from tests.tasks.intake.models import CASES, deliver, spec

PAYLOAD = '");system("touch /tmp/x");//\n\x1b[31m'
ATEN = torch.ops.aten


def schemas_with_texts() -> Iterator[tuple[str, torch._C.FunctionSchema, int]]:
    """Yield each operator of torch's that a graph may call, with the places of its texts."""
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, operation = schema.name.partition("::")
        name = f"torch.ops.{namespace}.{operation}.{schema.overload_name or 'default'}"
        if namespace not in ("aten", "prims") or resolve(name) is None:
            continue
        for place, argument in enumerate(schema.arguments):
            if "str" in str(argument.type):
                yield name, schema, place


def filled(schema: torch._C.FunctionSchema, place: int, text: str) -> tuple[object, ...]:
    return (*[0] * place, text, *[0] * (len(schema.arguments) - place - 1))


def is_refused(target: object, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    try:
        check_texts("call_function", target, args, kwargs)
    except TextRefused:
        return True
    return False


def test_no_operator_of_torchs_takes_a_text_that_it_does_not_know() -> None:
    found = list(schemas_with_texts())
    assert len(found) > 100
    for name, schema, place in found:
        argument = schema.arguments[place].name
        for text in (PAYLOAD, "bilinear;", "mean_", "no-one"):
            by_place = is_refused(resolve(name), filled(schema, place, text), {})
            by_name = is_refused(resolve(name), (), {argument: text})
            assert by_place == by_name == (argument not in MESSAGES), (name, argument, text)


def test_what_torch_itself_takes_as_a_default_passes() -> None:
    own_tests = ("_test_ambiguous_defaults", "_test_string_default", "_sparse_semi_structured_tile")
    defaults = 0
    for name, schema, place in schemas_with_texts():
        default = schema.arguments[place].default_value
        if isinstance(default, str) and not any(one in name for one in own_tests):
            assert not is_refused(resolve(name), filled(schema, place, default), {}), name
            defaults += 1
    assert defaults > 20
    for namespace in ("torch", "torch.functional", "torch.nn.functional"):
        for name in sorted(_functions(namespace)):
            function: Any = resolve(f"{namespace}.{name}")
            if inspect.isfunction(function):
                for parameter in inspect.signature(function).parameters.values():
                    if isinstance(parameter.default, str):
                        given: dict[str, object] = {parameter.name: parameter.default}
                        assert not is_refused(function, (), given), (name, parameter)
                        assert is_refused(function, (), {parameter.name: PAYLOAD})


@pytest.mark.parametrize(
    ("op", "target", "args", "kwargs"),
    [
        ("call_function", torch.nn.functional.interpolate, (0, None, 2, "bilinear"), {}),
        ("call_function", torch.nn.functional.gelu, (0,), {"approximate": "tanh"}),
        ("call_function", torch.einsum, ("b i ... , j k->bk", 0, 0), {}),
        ("call_function", ATEN.einsum.default, ("ij,jk->ik", [0, 0]), {}),
        ("call_function", torch.div, (0, 0), {"rounding_mode": "floor"}),
        ("call_function", torch.zeros, (3,), {"device": "cuda:0"}),
        ("call_function", torch.fft.fft, (0, None, -1, "ortho"), {}),
        ("call_function", torch.linalg.norm, (0, "fro"), {}),
        ("call_function", torch.linalg.qr, (0, "complete"), {}),
        ("call_function", torch.stft, (0, 8), {"pad_mode": "reflect"}),
        ("call_function", torch.functional.norm, (0, "fro"), {}),
        ("call_function", torch.meshgrid, (0, 0), {"indexing": "ij"}),
        ("call_function", torch.searchsorted, (0, 0), {"side": "right"}),
        ("call_function", ATEN._linalg_check_errors.default, (0, "torch.linalg.inv"), {}),
        ("call_method", "to", (0, "cpu"), {}),
        ("call_method", "type", (0, "torch.FloatTensor"), {}),
        ("call_method", "div", (0, 0), {"rounding_mode": "trunc"}),
        ("call_method", "scatter_reduce", (0, 0, 0, 0, "amax"), {}),
        ("call_method", "norm", (0, "fro"), {}),
        ("call_method", "new_zeros", (0, 3), {"device": "cpu"}),
        ("placeholder", "mode", ("bicubic",), {}),
        ("output", "output", ({"logits": 0, "head.0/box-2": [0, "text"]},), {}),
    ],
)
def test_texts_that_torch_knows_pass_and_any_other_in_their_place_is_refused(
    op: str, target: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    check_texts(op, target, args, kwargs)

    def spoil(value: object) -> object:
        if isinstance(value, dict):
            return {spoil(key): item for key, item in value.items()}
        return PAYLOAD if isinstance(value, str) else value

    spoilt = tuple(spoil(arg) for arg in args), {k: spoil(v) for k, v in kwargs.items()}
    with pytest.raises(TextRefused):
        check_texts(op, target, *spoilt)


@pytest.mark.parametrize(
    ("op", "target", "args", "kwargs"),
    [
        ("call_function", torch.add, (0, "1"), {}),
        ("call_function", torch.relu, (["relu"],), {}),
        ("call_function", torch.zeros, (3,), {"dtype": "float32"}),
        ("call_function", ATEN.sum.default, (0,), {"dtype": {"sum": 0}}),
        ("call_function", ATEN.slice.Tensor, (slice("a", None, None),), {}),
        ("call_method", "rename", (0, "N"), {}),
        ("call_method", "sum", (0, "N"), {}),
        ("call_module", "layer", (0, "mean"), {}),
        ("get_attr", "weight", ("mean",), {}),
        ("output", "output", ({"a\\": 0},), {}),
        ("output", "output", ({'a)"': 0},), {}),
        ("output", "output", ("??/",), {}),
    ],
)
def test_texts_are_refused_where_no_schema_has_one(
    op: str, target: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    with pytest.raises(TextRefused):
        check_texts(op, target, args, kwargs)


def test_attributes_of_layers_hold_the_words_of_their_classes_only() -> None:
    check_attribute("padding_mode", "circular")
    check_attribute("_all_weights", [["weight_ih_l0", "bias_ih_l0"]])
    check_attribute("kernel_size", (3, 3))
    for name, value in (
        ("padding_mode", PAYLOAD), ("in_features", "8"), ("_all_weights", [[PAYLOAD]]),
        ("mode", {PAYLOAD: 1}),
    ):  # fmt: skip
        with pytest.raises(TextRefused):
            check_attribute(name, value)


def asserting(message: str) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    good = graph.call_function(ATEN.all.default, (graph.call_function(ATEN.gt.Scalar, (x, -9.0)),))
    graph.call_function(ATEN._assert_async.msg, (good, message))
    graph.call_function(torch._assert, (good,), {"message": message})
    graph.output(graph.call_function(torch.relu, (x,)))
    return torch.fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("message", [PAYLOAD, "ok", "x" * 5000, "\\", "??/"])
def test_what_an_assertion_says_is_ours_and_names_its_line(message: str, tmp_path: Path) -> None:
    deliver(asserting(message), tmp_path, CASES["perceptron"][1])
    module = read_delivery(tmp_path).module
    said = [
        text
        for node in module.graph.nodes
        for text in (*node.args, *node.kwargs.values())
        if isinstance(text, str)
    ]
    lines = (tmp_path / "module.py").read_text().splitlines()
    at = [i for i, line in enumerate(lines, 1) if "assert" in line and "load(" not in line]
    assert said == [f"an assertion of the model failed (module.py:{line})" for line in at]
    assert json.dumps(message)[1:-1] not in module.code or message == "ok"
    with pytest.raises(Exception, match=rf"failed \(module.py:{at[0]}\)"):
        module(torch.full((3, 8), -10.0))
    module(torch.ones(3, 8))


def test_a_text_that_is_not_known_is_refused_with_its_line(tmp_path: Path) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(ATEN.gelu.default, (x,), {"approximate": PAYLOAD}))
    deliver(torch.fx.GraphModule(nn.Module(), graph), tmp_path, (spec("x", "float32", "N", 8),))
    with pytest.raises(DeliveryUnreadable, match="approximate to be one of none, tanh") as caught:
        read_delivery(tmp_path)
    assert str(caught.value).isprintable()
    assert caught.value.where.startswith("module.py:")
