"""What size is usual for the elements of an output: of the whole, or of each feature by itself.

An element that happens to be near zero was summed from terms of its neighbours' size, and carries
their rounding. But a column is not its neighbour: a score beside a timestamp is no sum of terms of
the timestamp's size. So an element is held to the size of the smallest feature that it is of, where
that is far below the output's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

# A feature is unlike the whole where it is so many times smaller, seen on so many values.
_UNLIKE = 0.1
_FEWEST_VALUES = 8
# How often a feature like the others may be taken for one that isn't, because it is small by luck.
_BY_LUCK = 1e-6
# What is left of terms that cancel is off by the rounding of these, if not by luck.
_CARRIED = 1 / 8


@dataclass(frozen=True)
class Scale:
    """The root mean squares of an output's features, by axis, for the axes whose size is fixed.

    Of an axis of `n` features they are float64 `[n]`.
    """

    features: dict[int, torch.Tensor] = field(default_factory=dict)

    def sizes(
        self, want: torch.Tensor, exact: torch.Tensor | None = None, eps: float = 0.0
    ) -> torch.Tensor:
        """Return for each element of `want` (any shape, float64) what its error is relative to.

        That is its own magnitude, or what is usual for its features, whichever is larger. A feature
        that is usually like the others may be small here by cancelling: then it carries the
        rounding of terms of the output's own size. How far `want` lies from `exact`, the same in
        float64, shows that, where the spacing of its dtype is `eps`.
        """
        finite = torch.where(torch.isfinite(want), want, 0.0)
        overall = _rms(finite, tuple(range(want.dim())))
        usual = overall.expand(want.shape)
        for axis, usual_size in self._broadcast_features(want):
            others = tuple(a for a in range(want.dim()) if a != axis)
            here = _rms(finite, others).reshape(usual_size.shape)
            feature_size = torch.maximum(usual_size, here)
            is_small = feature_size < _UNLIKE * overall
            # Of most outputs none is, and nothing further is asked.
            if not bool(is_small.any()):
                continue
            least = torch.maximum(usual_size, here * _luck_factor(want.numel() // want.shape[axis]))
            is_small_in_itself = least < _UNLIKE * overall
            if exact is not None:
                noise = want - exact
                carried = _rms(torch.where(torch.isfinite(noise), noise, 0.0), others)
                is_small_in_itself &= carried.reshape(usual_size.shape) < _CARRIED * eps * overall
            unlike = is_small & (
                (usual_size < _UNLIKE * usual_size.square().mean().sqrt()) | is_small_in_itself
            )
            usual = torch.where(unlike, torch.minimum(usual, feature_size), usual)
        return torch.maximum(want.abs(), usual)

    def noise_sizes(self, errors: torch.Tensor) -> torch.Tensor:
        """Return `sizes` of errors, where features that are noisier than the whole count as such.

        Errors and result are float64 of one shape, which may be any. One channel of an image may be
        summed from far more terms than the others.
        """
        usual = self.sizes(errors)
        overall = _rms(torch.where(torch.isfinite(errors), errors, 0.0), tuple(range(errors.dim())))
        for _, usual_size in self._broadcast_features(errors):
            noisy = torch.where(usual_size > overall, usual_size, 0.0)
            usual = torch.where(usual >= overall, torch.maximum(usual, noisy), usual)
        return usual

    def _broadcast_features(self, tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Give each axis of which the features are known, and these so that they broadcast.

        That is `[1, n, 1]` for the second axis of three. None of a tensor without elements: data
        may have decided that no row is left.
        """
        for axis, usual_size in self.features.items() if tensor.numel() else ():
            if axis < tensor.dim() and tensor.shape[axis] == usual_size.numel():
                yield (
                    axis,
                    usual_size.reshape([-1 if a == axis else 1 for a in range(tensor.dim())]),
                )


NO_SCALE = Scale()


def find_scale(outputs: Iterable[torch.Tensor]) -> Scale:
    """Return the scale of an output that was given in several cases, `[N, ...]`: batch axis first.

    Of outputs that aren't floating-point, or not of one rank, there is none. Axes of which the size
    differs between cases are no features, nor is the first of several.
    """
    floating = [t.double() for t in outputs if t.is_floating_point() and t.numel()]
    if not floating or len({t.dim() for t in floating}) > 1:
        return NO_SCALE
    rank = floating[0].dim()
    squares = [torch.where(torch.isfinite(t), t, 0.0).square() for t in floating]
    features = {}
    for axis in range(1 if rank > 1 else 0, rank):
        if len({t.shape[axis] for t in floating}) > 1 or floating[0].shape[axis] < 2:
            continue
        others = tuple(a for a in range(rank) if a != axis)
        values = sum(t.numel() // t.shape[axis] for t in floating)
        if values >= _FEWEST_VALUES:
            totals = [t.sum(others) if others else t for t in squares]
            features[axis] = (torch.stack(totals).sum(0) / values).sqrt()
    return Scale(features)


def _luck_factor(values: int) -> float:
    """Return how many times smaller than usual the RMS of so many normal numbers is by luck.

    Their mean square is chi-squared; of its lower tail, the first term of the series.
    """
    half = values / 2
    tail = math.exp((math.log(_BY_LUCK) + math.lgamma(half + 1)) / half)
    return max(1.0, math.sqrt(half / tail))


def _rms(values: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    if not axes:
        return values.abs()
    return values.square().mean(axes).sqrt() if values.numel() else values.new_zeros(())
