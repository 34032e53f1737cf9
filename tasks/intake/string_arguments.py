"""Which texts a delivered graph may hold: words that an operator's schema and a closed list know.

A compiler writes what a graph says into source code, and nobody has promised that it quotes it. A
text passes where the operator has a parameter for one and the text is among those that torch knows
there (`mode="bilinear"`), or keeps to a grammar (an einsum equation, a device). What an assertion
says when it fails is replaced by a sentence of ours. Anything else is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache

import torch
import torch.fx
from torch._ops import OpOverload, OpOverloadPacket

from handoff.tasks.optimize.operators import BUILT_IN


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REDUCTIONS = _words("sum prod mean amax amin max min add multiply")
# By the name of the parameter or of the module's attribute: what torch knows there.
WORDS: dict[str, frozenset[str]] = {
    "padding": _words("same valid"),
    "padding_mode": _words("zeros circular reflect replicate border reflection"),
    "padding_side": _words("left right"),
    "pad_mode": _words("constant reflect replicate circular"),
    "mode": _words(
        "nearest nearest-exact linear bilinear bicubic trilinear area constant reflect replicate "
        "circular sum mean max reduced complete r LSTM GRU RNN_TANH RNN_RELU"
    ),
    "reduction": _words("none mean sum batchmean"),
    "reduce": _REDUCTIONS,
    "rounding_mode": _words("trunc floor"),
    "norm": _words("backward ortho forward"),
    "ord": _words("fro nuc"),
    "p": _words("fro nuc"),
    "driver": _words("gels gelsy gelsd gelss gesvd gesvdj gesvda"),
    "UPLO": _words("L U l u"),
    "approximate": _words("none tanh"),
    "side": _words("left right"),
    "interpolation": _words("linear lower higher nearest midpoint"),
    "indexing": _words("ij xy"),
    "activation": _words("none relu silu"),
    "nonlinearity": _words("tanh relu"),
    "method": _words("basic ortho"),
    "compute_mode": _words(
        "use_mm_for_euclid_dist_if_necessary use_mm_for_euclid_dist donot_use_mm_for_euclid_dist"
    ),
    # What torch.nn's upsampling layers keep of themselves.
    "name": _words("Upsample UpsamplingNearest2d UpsamplingBilinear2d"),
}
_ANY_WORD = frozenset().union(*WORDS.values())
_TERM = r"(?:[A-Za-z ]|\.\.\.){0,100}"
GRAMMARS: dict[str, re.Pattern[str]] = {
    "equation": re.compile(rf"{_TERM}(?:,{_TERM}){{0,50}}(?:->{_TERM})?"),
    "device": re.compile(r"(?:cpu|cuda|meta|mps|xpu|hpu|mtia|xla)(?::[0-9]{1,3})?"),
    "api_name": re.compile(r"(?:torch\.)?linalg\.[a-z_]{1,40}"),
    # Of x.type("torch.FloatTensor").
    "type": re.compile(
        r"torch\.(?:cuda\.)?(?:Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Tensor"
    ),
}  # fmt: skip
# What is said when an assertion fails.
MESSAGES = frozenset({"assert_msg", "message"})
# Keys of a dictionary of outputs, and words that are outputs themselves.
_OUTPUT_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:/ -]{0,98}[A-Za-z0-9_.])?")
# What an operator of an extension may be given: the recipe's author trusts it, we don't know it.
_EXTENSION_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?")
# An RNN's weights by name.
_WEIGHT_NAME = re.compile(r"[A-Za-z0-9_]{1,200}")
_WEIGHT_LISTS = frozenset({"_flat_weights_names", "_all_weights"})
# Methods that no schema describes, by their parameters.
_UNDESCRIBED_METHODS = {"type": ("self", "type"), "cuda": ("self", "device")}
_SHOWN_WORDS = 12


class TextRefused(Exception):
    """A text that may not stand where it does: what was expected there, and the text."""

    def __init__(self, expected: str, text: str) -> None:
        """Hold both; the text as it is, unfit to be shown."""
        super().__init__(expected)
        self.expected, self.text = expected, text


def check_texts(
    op: str, target: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Raise `TextRefused` for the first text of a step that no list and no grammar knows.

    `op` and `target` are those of a `torch.fx` node. Messages of assertions pass as they are, since
    `replace_messages` takes them out.
    """
    if op == "output":
        for text in _texts((args, kwargs)):
            _require(_OUTPUT_NAME, text, "plain words as the outputs' names")
        return
    if op == "placeholder":
        for text in _texts((args, kwargs)):
            if text not in _ANY_WORD:
                raise TextRefused("an input's default without text of its own", text)
        return
    if target is getattr:
        # The reader has its own closed list of attributes.
        return
    arguments: list[tuple[int | str, object]] = [*enumerate(args), *kwargs.items()]
    for position, value in arguments:
        for text in _texts(value):
            _check_argument(op, target, position, text, is_whole=isinstance(value, str))


def _check_argument(
    op: str, target: object, position: int | str, text: str, *, is_whole: bool
) -> None:
    names = _parameter_names(op, target, position) if is_whole else frozenset()
    if names & MESSAGES:
        return
    is_operator = isinstance(target, OpOverload | OpOverloadPacket)
    if is_operator and str(target).partition(".")[0] not in BUILT_IN:
        _require(_EXTENSION_WORD, text, "a plain word")
    elif not any(is_known(name, text) for name in names):
        raise TextRefused(_describe_expected(names), text)


def is_known(name: str, text: str) -> bool:
    """Return whether `text` is one that torch knows for a parameter or attribute of that name."""
    grammar = GRAMMARS.get(name)
    return text in WORDS.get(name, ()) or bool(grammar and grammar.fullmatch(text))


def check_attribute(name: str, value: object) -> None:
    """Raise `TextRefused` for a text in a torch.nn module's attribute that its class doesn't know.

    `value` is plain: numbers, texts, and containers of them.
    """
    for text in _texts(value):
        if name in _WEIGHT_LISTS:
            _require(_WEIGHT_NAME, text, f"the weights' names in {name}")
        elif not is_known(name, text):
            raise TextRefused(_describe_expected(frozenset({name})), text)


def replace_messages(module: torch.fx.GraphModule) -> None:
    """Let each assertion of `module` say which line of module.py it is on, and nothing else.

    Whatever stands in the message's place is replaced, a computed value as well. The delivered
    message stays where it was: on that line.
    """
    is_changed = False
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        line = node.meta.get("module_line", 0)
        message = f"an assertion of the model failed (module.py:{line})"
        for position in range(len(node.args)):
            if _parameter_names(node.op, node.target, position) & MESSAGES:
                node.update_arg(position, message)
                is_changed = True
        for name in sorted(MESSAGES & set(node.kwargs)):
            node.update_kwarg(name, message)
            is_changed = True
    if is_changed:
        module.recompile()


def _require(grammar: re.Pattern[str], text: str, expected: str) -> None:
    if not grammar.fullmatch(text):
        raise TextRefused(expected, text)


def _describe_expected(names: frozenset[str]) -> str:
    listed = sorted(name for name in names if name in WORDS)
    if listed:
        words = sorted(WORDS[listed[0]])
        ellipsis = ", ..." if len(words) > _SHOWN_WORDS else ""
        return f"{' or '.join(listed)} to be one of {', '.join(words[:_SHOWN_WORDS])}{ellipsis}"
    matched = sorted(name for name in names if name in GRAMMARS)
    return f"{matched[0]} as torch writes it" if matched else "no text there"


def _texts(value: object) -> Iterator[str]:
    """Yield each text in a value, the keys of dictionaries as well."""
    match value:
        case str():
            yield value
        case tuple() | list() | set():
            for item in value:
                yield from _texts(item)
        case dict():
            for key, item in value.items():
                yield from _texts(key)
                yield from _texts(item)
        case slice():
            yield from _texts((value.start, value.stop, value.step))


def _parameter_names(op: str, target: object, position: int | str) -> frozenset[str]:
    """Return the names that the parameter may have which an argument is for."""
    if isinstance(target, str) and op == "call_method":
        return _method_parameters(target, position)
    if op == "call_function" and callable(target):
        return _function_parameters(target, position)
    return frozenset()


@cache
def _method_parameters(name: str, position: int | str) -> frozenset[str]:
    names = _overload_parameters(name, position) | _signature_parameters(
        getattr(torch.Tensor, name, None), position
    )
    return names | _select(_UNDESCRIBED_METHODS.get(name, ()), position)


@cache
def _function_parameters(function: Callable[..., object], position: int | str) -> frozenset[str]:
    if isinstance(function, OpOverload):
        return _schema_parameters(function._schema, position)
    if isinstance(function, OpOverloadPacket):
        return _overload_parameters(function._qualified_op_name, position)
    name = getattr(function, "__name__", "")
    if function is torch.functional.einsum:
        # einsum(*args), whose first is the equation.
        return frozenset({"equation"}) if position == 0 else frozenset()
    if position == "device":
        return frozenset({"device"})
    if name == "type" or getattr(function, "__objclass__", None) is not None:
        return _method_parameters(name, position)
    return _signature_parameters(function, position) or _overload_parameters(name, position)


def _signature_parameters(function: object, position: int | str) -> frozenset[str]:
    """Return the name by a Python function's signature, which knows of no types to go by."""
    if not inspect.isfunction(function):
        return frozenset()
    # Some of torch's functions are copies with a table of overrides in front of them.
    parameters = inspect.signature(function).parameters
    names = [p.name for p in parameters.values() if p.kind is not p.VAR_POSITIONAL]
    has_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return _select(() if has_rest and isinstance(position, int) else tuple(names), position)


def _overload_parameters(name: str, position: int | str) -> frozenset[str]:
    """Return the names by all overloads of one of ATen's operators; none where there is none."""
    qualified = name if "::" in name else f"aten::{name}"
    schemas = torch._C._jit_get_schemas_for_operator(qualified)
    return frozenset().union(*(_schema_parameters(schema, position) for schema in schemas))


def _schema_parameters(schema: torch._C.FunctionSchema, position: int | str) -> frozenset[str]:
    names = tuple(
        argument.name if re.search(r"str|Device", str(argument.type)) else ""
        for argument in schema.arguments
    )
    return _select(names, position)


def _select(names: tuple[str, ...], position: int | str) -> frozenset[str]:
    if isinstance(position, int):
        return frozenset(names[position : position + 1]) - {""}
    return frozenset({position} & set(names)) - {""}
