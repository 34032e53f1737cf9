"""Which functions, methods and attributes a delivered graph may name, and what they resolve to.

An allow-list by origin: torch's own table of overridable functions, its factories, the operators
of the `aten` and `prims` namespaces whose schemas hold tensors and numbers only, Python's operators
and arithmetic. What reads or writes files, loads code, reaches memory by address, or takes a
callback is left out.
"""

from __future__ import annotations

import builtins
import math
import operator
import re
from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.overrides

from handoff.tasks.optimize.operators import BUILT_IN

Function = Callable[..., Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Tensor methods that call back, leave the process, reach memory by address or change identity.
_REFUSED_METHODS = _words(
    "apply_ map_ map2_ backward const_data_ptr data_ptr is_set_to module_load numpy pin_memory "
    "record_stream register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad "
    "set_ share_memory_ storage storage_type untyped_storage resize resize_as"
)
_REFUSED_FUNCTIONS = _words(
    "from_file set_ save load compile import_ir_module record_stream resize_as_sparse_ "
    "resize_as_ from_dlpack to_dlpack frombuffer asarray from_numpy assert_int_or_pair backward "
    "_backward set_data retain_grad requires_grad_ _print warn"
)
_MORE_METHODS = _words(
    "size stride new new_empty new_empty_strided new_full new_ones new_tensor new_zeros numel "
    "is_floating_point to view unflatten to_padded_tensor cholesky items keys values"
)
# What fx writes for the operators of a parameter or buffer with an input: `table[ids]` becomes
# `table.__getitem__(ids)`.
_OPERATOR_METHODS = _words(
    "__getitem__ __and__ __or__ __xor__ __lshift__ __rshift__ __floordiv__ __mod__ __rsub__ "
    "__rand__ __ror__ __rxor__ __rlshift__ __rrshift__ __rfloordiv__ __rmod__ __rpow__ __rmatmul__"
)
_FACTORIES = _words(
    "arange as_tensor bartlett_window blackman_window complex empty empty_strided eye full "
    "hamming_window hann_window kaiser_window linspace logspace normal ones polar rand randint "
    "randn randperm range result_type promote_types scalar_tensor tensor tril_indices "
    "triu_indices vander zeros cartesian_prod broadcast_shapes _assert can_cast "
    "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum is_tensor "
    "is_floating_point is_complex get_default_dtype"
)
_BUILTINS = _words("abs all any bool divmod float int len max min pow range round sum tuple list")
_OPERATORS = _words("abs contains countOf index inv is_ is_not not_ truth concat indexOf")
ATTRIBUTES = _words(
    "shape dtype device layout ndim T mT H mH real imag data itemsize nbytes requires_grad "
    "is_cpu is_cuda is_mps is_xpu is_meta is_sparse is_quantized is_nested is_floating_point "
    "is_complex is_signed type index values indices "
    # The fields of torch.return_types, as in torch.max(x, 1).values.
    "U S V Vh Q R L P LU QR A sign logabsdet eigenvalues eigenvectors mantissa exponent hist "
    "bin_edges pivots info solution residuals rank singular_values tau output counts"
)
_NATIVE_MODULES = ("torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._C._special")
# Operators on numbers alone that torch.export writes; others without a tensor set global state.
_NUMERIC_OPERATORS = _words("_assert_scalar sym_constrain_range sym_constrain_range_for_size")
_SCHEMA_TYPE = re.compile(
    r"(?:Optional|List|Tuple|Dict)?\[?(?:"
    r"Tensor|int|bool|float|number|complex|str|Device|Generator|SymInt|SymFloat|SymBool"
    r"|ScalarType|Layout|MemoryFormat)\]*"
)
_NUMBER_SUFFIX = re.compile(r"_[0-9]+$")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


@cache
def _overridable(namespace: object) -> frozenset[str]:
    """Return the public names in torch's table of overridable functions for a namespace."""
    functions = torch.overrides.get_overridable_functions()[namespace]
    names = {getattr(function, "__name__", "") for function in functions}
    return frozenset(name for name in names if name and not name.startswith("_"))


@cache
def _functions(namespace: str) -> frozenset[str]:
    """Return the public names of the functions of a namespace that a graph may call."""
    match namespace:
        case "torch":
            native = {name for name in dir(torch._C._VariableFunctions) if name[0] != "_"}
            return frozenset(native | _overridable(torch) | _FACTORIES) - _REFUSED_FUNCTIONS
        case "torch.functional":
            return frozenset(torch.functional.__all__)
        case "torch.nn.functional":
            functions = {
                name
                for name, function in vars(torch.nn.functional).items()
                if isinstance(function, FunctionType | BuiltinFunctionType)
                and function.__module__ in ("torch.nn.functional", "torch._C._nn", None)
                # F.threshold is known to itself, and so to fx, as _threshold.
                and (name[0] != "_" or name == "_threshold")
            }
            return frozenset(functions | _overridable(torch.nn.functional)) - _REFUSED_FUNCTIONS
        case _:
            return frozenset()


@cache
def methods() -> frozenset[str]:
    """Return the names of the tensor methods that a graph may call."""
    return (_overridable(torch.Tensor) | _MORE_METHODS | _OPERATOR_METHODS) - _REFUSED_METHODS


@cache
def resolve(name: str, namespaces: frozenset[str] = BUILT_IN) -> Function | None:
    """Return the function that fx writes as `name`, or None when a graph may not call it."""
    if name.startswith("torch.ops."):
        return _resolve_operator(name, namespaces)
    namespace, _, attribute = name.rpartition(".")
    if attribute in _REFUSED_FUNCTIONS or not NAME.fullmatch(attribute):
        return None
    if namespace == "":
        return _resolve_plain(name) or _resolve_plain(_NUMBER_SUFFIX.sub("", name))
    if namespace in _NATIVE_MODULES and not attribute.startswith("_"):
        found = vars(getattr(torch._C, namespace.rpartition(".")[2])).get(attribute)
        return found if callable(found) else None
    if namespace == "torch.Tensor":
        found = getattr(torch.Tensor, attribute, None) if attribute in methods() else None
        return found if callable(found) else None
    if attribute in _functions(namespace):
        module = {"torch": torch, "torch.functional": torch.functional}.get(
            namespace, torch.nn.functional
        )
        return _function_or_none(getattr(module, attribute, None))
    return None


def _function_or_none(value: object) -> Function | None:
    return value if callable(value) and not isinstance(value, type) else None


def _resolve_plain(name: str) -> Function | None:
    """Return a function that fx writes without dots, such as `_operator_abs` or `math_sqrt`."""
    if name == "getattr" or name in _BUILTINS:
        found: Function = getattr(builtins, name)
        return found
    if name.startswith("_operator_") and name[10:] in _OPERATORS:
        return _function_or_none(getattr(operator, name[10:], None))
    if name.startswith("torch_Tensor_") and name[13:] in methods():
        return _function_or_none(getattr(torch.Tensor, name[13:], None))
    if name.startswith("math_") and NAME.fullmatch(name[5:]) and not name.startswith("math__"):
        return _function_or_none(vars(math).get(name[5:]))
    return None


def _resolve_operator(name: str, namespaces: frozenset[str]) -> Function | None:
    parts = name.split(".")[2:]
    if len(parts) not in (2, 3) or not all(NAME.fullmatch(part) for part in parts):
        return None
    namespace, operation = parts[:2]
    if namespace not in namespaces or operation in _REFUSED_FUNCTIONS:
        return None
    if any(part.startswith("__") and not _is_operator_name(part) for part in parts):
        return None
    schemas = torch._C._jit_get_schemas_for_operator(f"{namespace}::{operation}")
    overload = parts[2] if len(parts) == 3 else None
    overload_name = None if overload is None else ("" if overload == "default" else overload)
    matching = [s for s in schemas if overload_name is None or s.overload_name == overload_name]
    if not matching or not any(_is_plain(schema) for schema in matching):
        return None
    if overload is not None and not all(_is_plain(schema) for schema in matching):
        return None
    packet = getattr(getattr(torch.ops, namespace), operation)
    return _function_or_none(packet if overload is None else getattr(packet, overload))


def _is_operator_name(part: str) -> bool:
    return part.strip("_") in {"and", "or", "xor", "lshift", "rshift", "iand", "ior", "ixor"}


def _is_plain(schema: torch._C.FunctionSchema) -> bool:
    """Return whether an operator is one of torch's dispatcher and takes and gives plain values."""
    types = [str(value.type) for value in (*schema.arguments, *schema.returns)]
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    if not torch._C._dispatch_has_kernel(schema.name + overload):
        return False
    takes_tensors = any("Tensor" in kind for kind in types)
    operation = schema.name.partition("::")[2]
    return (takes_tensors or operation in _NUMERIC_OPERATORS) and all(map(_is_plain_type, types))


def _is_plain_type(text: str) -> bool:
    while True:
        inner = re.fullmatch(r"(?:Optional|List)\[(.*)\]", text)
        if inner is None:
            return _SCHEMA_TYPE.fullmatch(text) is not None
        text = inner.group(1)
