"""How well conditioned each element of an output is, measured by Monte Carlo arithmetic.

A model is run a few times in its own precision while the result of every operator that rounds is
moved by up to a unit in the last place, at random and repeatably. What an element moves by is what
rounding alone may do to it: one that is exact doesn't move, one at a step flips in some of the
runs, one of a chaotic map lands anywhere. (Parker, Monte Carlo Arithmetic, 1997; Verificarlo and
CADNA do the same to compiled programs.)

Three things are done otherwise than in a plain perturbation of every number:

- A result that float64 gives exactly alike was not rounded, and isn't moved: sums of whole numbers,
  products with powers of two, masks.
- Operators that add up (sums, products of matrices, norms, decompositions) round inside, where
  nobody sees it. What they take is moved, too, as backward error analysis has it: a computed sum is
  the exact sum of terms that are a little off.
- What decides or only carries (comparisons, rounding, remainders, casts, indexing) is as exact as
  what it is given, and neither its inputs nor its results are moved.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.mha_fastpath import by_definition

Tensors = tuple[torch.Tensor, ...]

# In which precision an operator is run again, to see what it has rounded.
_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_FLOATING = (*_WIDER, torch.float64, torch.complex128)
_INTEGRAL = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# By torch's names without overload and without the underscore of those that work in place. They
# give what is in their inputs, whole numbers, or a result that IEEE 754 or their definition makes
# exact.
_EXACT = frozenset({
    # carrying
    "_copy_from", "_reshape_alias", "_reshape_copy", "_to_copy", "_unsafe_index", "_unsafe_view",
    "affine_grid_generator", "alias", "as_strided", "as_strided_scatter", "bucketize", "cat",
    "channel_shuffle", "clone", "col2im", "complex", "constant_pad_nd", "contiguous", "copy",
    "detach", "diag_embed", "diagonal_copy", "diagonal_scatter", "embedding", "expand_copy", "fill",
    "flip", "gather", "im2col", "index", "index_copy", "index_fill", "index_select",
    "lift_fresh", "lift_fresh_copy", "masked_fill", "masked_scatter", "masked_select",
    "narrow_copy", "nonzero", "permute_copy", "pixel_shuffle", "pixel_unshuffle",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "repeat", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "resize", "roll", "rot90", "scatter", "select_copy",
    "select_scatter", "set", "slice_copy", "slice_scatter", "split_copy", "split_with_sizes",
    "squeeze_copy", "stack", "t_copy", "take", "to", "transpose_copy", "tril", "triu", "unfold",
    "unfold_copy", "unsqueeze_copy", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "view_as_complex", "view_as_real", "view_copy", "where", "zero",
    # choosing
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax", "amin", "aminmax",
    "clamp", "clamp_max", "clamp_min", "cummax", "cummin", "_cummax_helper", "_cummin_helper",
    "fmax", "fmin", "hardtanh", "kthvalue", "max", "max_pool1d", "max_pool2d", "max_pool3d",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "maximum", "median", "min", "minimum",
    "mode", "msort", "nanmedian", "relu", "relu6", "segment_reduce", "sort", "threshold", "topk",
    "_unique", "_unique2", "unique_consecutive", "unique_dim",
    # exact by definition
    "abs", "ceil", "conj_physical", "copysign", "fix", "floor", "floor_divide", "fmod", "frac",
    "frexp", "heaviside", "imag", "ldexp", "nan_to_num", "neg", "nextafter", "positive", "real",
    "remainder", "round", "sgn", "sign", "trunc",
    # from no numbers
    "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like",
    "scalar_tensor", "zeros", "zeros_like",
})  # fmt: skip
# Of these overloads the last argument rounds to a whole number.
_EXACT_OVERLOADS = frozenset({"Tensor_mode", "Scalar_mode"})

# What float64 has nothing wider for is taken for exact where so many of its last bits are zero.
_ZERO_BITS = 16


class PerturbationMode(TorchDispatchMode):
    """While it is entered, moves what operators give by about a unit in the last place."""

    def __init__(self, seed: int) -> None:
        """Draw the moves from `seed`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator, and move what it gives where it rounds."""
        kwargs = kwargs or {}
        if _is_exact(func):
            return func(*args, **kwargs)
        adds_up = torch.Tag.pointwise not in func.tags
        if adds_up and not func._schema.is_mutable and _rounds_for_sure(args, kwargs):
            return self._run_moved(func, args, kwargs)
        # Before it runs: it may work in place.
        wider = _run_wider(func, args, kwargs)
        nudged = self._run_nudged(func, args, kwargs) if adds_up else None
        result = func(*args, **kwargs)
        return self._move_all(result, wider, nudged, in_place=func._schema.is_mutable)

    def _move_all(self, result: Any, wider: Any, nudged: Any, *, in_place: bool) -> Any:  # noqa: ANN401 - whatever it gives
        leaves, form = pytree.tree_flatten(result)
        wide = pytree.tree_leaves(wider) if wider is not None else [None] * len(leaves)
        moved = pytree.tree_leaves(nudged) if nudged is not None else [None] * len(leaves)
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor) or leaf.dtype not in _FLOATING:
                continue
            changed = self._move(leaf, wide[index], moved[index])
            leaves[index] = leaf.copy_(changed) if in_place else changed
        return pytree.tree_unflatten(leaves, form)

    def _move(
        self,
        result: torch.Tensor,
        wide: torch.Tensor | None,
        nudged: torch.Tensor | None,
    ) -> torch.Tensor:
        if result.is_complex():
            parts = [None if t is None else torch.view_as_real(t) for t in (wide, nudged)]
            real = self._move(torch.view_as_real(result), *parts)
            return torch.view_as_complex(real.contiguous())
        wide_dtype = _WIDER.get(result.dtype, torch.float64)
        value = result.to(wide_dtype)
        # In place from here on: a model has millions of these.
        amplitude = value.abs().mul_(torch.finfo(result.dtype).eps)
        if wide is None:
            exact = _ends_in_zeros(result)
        else:
            exact = value == wide
            # What eager's own kernel is off by, another kernel may be off by the other way.
            amplitude.add_((value - wide).abs_().nan_to_num_(0.0, 0.0, 0.0), alpha=2.0)
        moved = amplitude.mul_(self._draw(value.shape)).add_(value)
        if nudged is not None:
            before = value if wide is None else wide
            moved.add_(nudged.to(wide_dtype) - before)
        return torch.where(exact | ~torch.isfinite(value), result, moved.to(result.dtype))

    def _run_moved(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
        """Run an operator that certainly rounds on what is a little off, in its own precision.

        That is all that its rounding does, for a fraction of what a wider precision takes; layers
        that have to be taken apart were, so that the fastest kernel may run.
        """

        def nudge(value: Any) -> Any:  # noqa: ANN401 - as above
            if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
                return value
            moved = self._draw(value.shape).mul_(torch.finfo(value.dtype).eps).mul_(value)
            return moved.add_(value)

        changed = pytree.tree_map(nudge, (args, dict(kwargs)))
        with _mkldnn(enabled=True):
            return func(*changed[0], **changed[1])

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        """Return float32 numbers of this shape between -1 and 1."""
        return torch.empty(shape, dtype=torch.float32).uniform_(-1.0, 1.0, generator=self._random)

    def _run_nudged(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
        """Return what the operator gives for what is a little off."""

        def nudge(value: Any) -> Any:  # noqa: ANN401 - as above
            if not isinstance(value, torch.Tensor):
                return value
            if value.dtype not in _FLOATING:
                return value.clone()
            if value.is_complex():
                return torch.view_as_complex(nudge(torch.view_as_real(value)).contiguous())
            kind = _WIDER.get(value.dtype, torch.float64)
            moved = self._draw(value.shape).to(kind).mul_(torch.finfo(value.dtype).eps).add_(1.0)
            return moved.mul_(value)

        return _attempt(func, *pytree.tree_map(nudge, (args, dict(kwargs))))


def _run_wider(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    """Return what the operator gives in the next wider precision; None where there is none."""
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    kinds = {tensor.dtype for tensor in tensors}
    # Numbers computed from whole ones alone are distinguished in float64.
    is_integral = bool(kinds) and not kinds & set(_FLOATING) and not func._schema.is_mutable
    if not (is_integral or kinds & _WIDER.keys()) or kinds & {torch.float64, torch.complex128}:
        return None
    # float32 beside bfloat16, too, and a result may be of either: all of them in float64 then.
    halves = {torch.float16, torch.bfloat16}
    widest = torch.float32 if kinds & halves and kinds <= {*halves, *_INTEGRAL} else torch.float64

    def widen(value: Any) -> Any:  # noqa: ANN401 - as above
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                return value.to(torch.complex128)
            if is_integral and value.dtype is not torch.bool:
                return value.to(widest)
            return value.to(widest) if value.dtype in _WIDER else value.clone()
        if isinstance(value, torch.dtype):
            return widest if value in _WIDER and not value.is_complex else value
        # An operator takes its numbers in float32, at the least.
        return float(torch.tensor(value, dtype=torch.float32)) if type(value) is float else value

    return _attempt(func, *pytree.tree_map(widen, (args, dict(kwargs))))


# Of float32, and how many of a tensor's elements are looked at.
_LOW_BITS = 0xFF
_SAMPLED = 4096


def _rounds_for_sure(args: Any, kwargs: Mapping[str, Any]) -> bool:  # noqa: ANN401 - as above
    """Return whether what an operator adds up has too many digits for any sum of it to be exact.

    That is so where it takes several tensors of float32 and nearly all numbers in each have digits
    in their last places; whole numbers, masks and one-hot rows don't.
    """
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    floating = [one for one in tensors if one.dtype in _FLOATING and one.numel() > 1]
    if len(floating) < 2 or any(one.dtype is not torch.float32 for one in floating):
        return False
    return all(map(_has_all_digits, floating))


def _has_all_digits(tensor: torch.Tensor) -> bool:
    if not tensor.is_contiguous():
        # Rows of it, so that nothing large is copied.
        tensor = tensor[..., : min(tensor.shape[-1], 64)]
    numbers = tensor.reshape(-1)[:_SAMPLED]
    numbers = numbers[(numbers != 0) & torch.isfinite(numbers)]
    if numbers.numel() < 2:
        return False
    low = numbers.contiguous().view(torch.int32) & _LOW_BITS
    return bool((low != 0).double().mean() > 0.9)


def _attempt(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    """Return what an operator gives; None where it has no kernel for these precisions."""
    with contextlib.suppress(RuntimeError):
        return func(*args, **kwargs)
    return None


def _is_exact(func: Any) -> bool:  # noqa: ANN401 - an OpOverload
    schema = func._schema
    name = schema.name.partition("::")[2]
    base = name if name.startswith("__") else name.rstrip("_")
    if base in _EXACT or func._overloadname in _EXACT_OVERLOADS:
        return True
    if base in ("index_put", "_index_put_impl", "_unsafe_index_put", "index_put_impl"):
        return True
    returned = [value.alias_info for value in schema.returns]
    # A view, of which nothing is written.
    return any(alias is not None and not alias.is_write for alias in returned)


def _ends_in_zeros(result: torch.Tensor) -> torch.Tensor:
    if result.dtype is not torch.float64:
        # No wider run shows it: what is zero is taken for exact.
        return result == 0
    return (result.contiguous().view(torch.int64) & ((1 << _ZERO_BITS) - 1)) == 0


class Conditioning:
    """How far each element of a model's outputs moves under perturbation, on the inputs of a case.

    `model` is called with copies of `inputs`, of any shapes and dtypes. `eager` are outputs of the
    same form; moves are measured from what the model itself gives when nothing is moved, which may
    be something else.
    """

    def __init__(
        self, model: Callable[..., Any], inputs: Sequence[torch.Tensor], eager: Tensors, name: str
    ) -> None:
        """Run nothing yet; the moves are drawn from the case's `name`."""
        self._model, self._inputs, self._eager, self._name = model, inputs, eager, name
        self._runs = 0
        self._baseline: Tensors | None = None
        self._moved = tuple(torch.zeros(t.shape, dtype=torch.float64) for t in eager)

    def moved(self, output: int, runs: int) -> torch.Tensor:
        """Return the largest move of each element over so many runs: float64, of eager's shape.

        Infinite where it changed between finite and not, or between other infinities and NaN; of
        whole numbers and truths, anything above 0 means another value.
        """
        while self._runs < runs:
            self._run_once()
        return self._moved[output]

    def _run_once(self) -> None:
        if self._baseline is None:
            self._baseline = _run(self._model, self._inputs, contextlib.nullcontext())
        seed = zlib.crc32(f"{self._name} {self._runs}".encode())
        outputs = run_perturbed(self._model, self._inputs, seed)
        self._runs += 1
        if len(outputs) != len(self._moved):
            return
        self._moved = tuple(
            torch.maximum(before, _distance(got, want)) if got.shape == before.shape else before
            for before, got, want in zip(self._moved, outputs, self._baseline, strict=True)
        )


def run_perturbed(model: Callable[..., Any], inputs: Sequence[torch.Tensor], seed: int) -> Tensors:
    """Return the model's flattened outputs, every operator's result moved by what `seed` draws.

    Inputs and outputs may be of any shapes, and keep the model's own dtypes.
    """
    return _run(model, inputs, PerturbationMode(seed))


def _run(
    model: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    mode: contextlib.AbstractContextManager[object],
) -> Tensors:
    cloned = [tensor.clone() for tensor in inputs]
    with torch.no_grad(), _decompose_layers(), mode:
        return flatten_tensors(model(*cloned))


@contextlib.contextmanager
def _decompose_layers() -> Iterator[None]:
    """Have attention and recurrent layers run as the operators that they are made of."""
    with by_definition(), _mkldnn(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


@contextlib.contextmanager
def _mkldnn(*, enabled: bool) -> Iterator[None]:
    # `torch.backends.mkldnn.flags` sets more than this, and warns of what this machine lacks.
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _distance(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    if not want.dtype.is_floating_point and not want.is_complex():
        return (got != want).double() * (got.double() - want.double()).abs().clamp_min(1.0)
    if want.is_complex():
        parts = [torch.view_as_real(t.to(torch.complex128)) for t in (got, want)]
        return _distance(*parts).amax(-1)
    both = torch.isfinite(got) & torch.isfinite(want)
    same = (got == want) | (got.isnan() & want.isnan())
    apart = (got.double() - want.double()).abs()
    return torch.where(both, apart, torch.where(same, 0.0, torch.inf))
