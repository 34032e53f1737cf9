"""Right models whose numbers are hard to judge: ill conditioned, decided, chaotic, or at ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class LargeSoftmax(nn.Module):
    """Logits of some hundreds `[N, 20]`, and their probabilities."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = x * 300.0
        return torch.softmax(logits, -1), torch.log_softmax(logits, -1)


class MaskedAttention(nn.Module):
    """Attention in four heads over `[N, 9, 32]`, with a mask `[N, 9]` of the places that count."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        query, key, value = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        seen = mask[:, None, None, :] | torch.eye(9, dtype=torch.bool)
        h = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.out(h.transpose(1, 2).flatten(2))


class LogSumExp(nn.Module):
    """Scores `[N, 50]` to a free energy, whose terms are far apart."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.logsumexp(x * 50.0, -1), torch.logaddexp(x * 50.0, -x * 50.0)


class NearlyConstantNorm(nn.Module):
    """Rows `[N, 24]` that hardly vary around a large number, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Any:
        return self.norm(100.0 + x * 1e-3)


def _positive(x: Tensor) -> Tensor:
    """Return symmetric positive definite matrices of `x`, `[N, n, n]`."""
    return x @ x.transpose(1, 2) + 2.0 * torch.eye(x.shape[-1], dtype=x.dtype)


class Whitened(nn.Module):
    """Features `[N, 6, 6]` and the inverse of their covariance."""

    def forward(self, x: Tensor) -> Any:
        return torch.linalg.inv(_positive(x))


class Solved(nn.Module):
    """The least squares' weights of `[N, 6, 6]` for `[N, 6, 2]`."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return torch.linalg.solve(_positive(x), y)


class Choleskied(nn.Module):
    """The lower triangle of a covariance `[N, 6, 6]`."""

    def forward(self, x: Tensor) -> Any:
        return torch.linalg.cholesky(_positive(x))


class SingularValues(nn.Module):
    """Matrices `[N, 6, 5]` to their singular values."""

    def forward(self, x: Tensor) -> Any:
        return torch.linalg.svdvals(x)


class EigenValues(nn.Module):
    """Covariances `[N, 6, 6]` to their eigenvalues."""

    def forward(self, x: Tensor) -> Any:
        return torch.linalg.eigvalsh(_positive(x))


class Spectrum(nn.Module):
    """Signals `[N, 64]` to the size of their spectrum."""

    def forward(self, x: Tensor) -> Any:
        spectrum = torch.fft.rfft(x)
        return torch.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)


class LowPass(nn.Module):
    """Signals `[N, 64]` without what changes fast, by their spectrum and back."""

    def forward(self, x: Tensor) -> Any:
        spectrum = torch.fft.rfft(x)
        kept = torch.arange(33) < 9
        return torch.fft.irfft(spectrum * kept, n=64)


class MelSpectrogram(nn.Module):
    """Sound `[N, 800]` to the logarithm of what lies in 20 bands."""

    window: Tensor
    bands: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(128))
        self.register_buffer("bands", torch.rand(20, 65) * (torch.rand(20, 65) < 0.2))

    def forward(self, sound: Tensor) -> Any:
        spectrum = torch.stft(sound, 128, 64, window=self.window, return_complex=True)
        power = spectrum.real**2 + spectrum.imag**2
        return torch.log(torch.matmul(self.bands, power) + 1e-6)


class LongRecurrent(nn.Module):
    """Series `[N, 300, 3]` to `[N, 2]` by a recurrent layer's last state."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.layer = layer(3, 10, batch_first=True)
        self.head = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layer(x)[0][:, -1])


class Ranked(nn.Module):
    """Whole scores `[N, 30]`, many of them equal: sorted, their order, and the best five."""

    def forward(self, scores: Tensor) -> tuple[Tensor, ...]:
        ordered, places = torch.sort(scores, stable=True, dim=1, descending=True)
        return ordered, places, torch.topk(scores.float(), 5, 1).values


class Hashed(nn.Module):
    """Ids `[N, 7]` mixed by multiplications that overflow, to rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 8)

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        mixed = (ids ^ (ids >> 15)) * 0x2C1B3C6D
        mixed = (mixed ^ (mixed >> 12)) * 0x297A2D39
        bucket = torch.remainder(mixed, 1000)
        return bucket, self.table(bucket).sum(1)


class Classes(nn.Module):
    """Features `[N, 16]` to the class with the best of 10 scores, and that score."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores = self.scores(x)
        return scores.argmax(1), scores.amax(1)


class Alarms(nn.Module):
    """Features `[N, 16]` to four yes or no, and whether there is any."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        alarms = torch.sigmoid(self.scores(x)) > 0.5
        return alarms, alarms.any(1)


class HalfDecisions(nn.Module):
    """A small network `[N, 16]` in its weights' precision: a class and four yes or no."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores = self.body(x)
        return scores.argmax(1), scores[:, :4] > 0, scores


class HalfNorm(nn.Module):
    """Features `[N, 32]` in float16, normalised; the norm's squares overflow float16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32).half()
        self.norm = nn.LayerNorm(32).half()

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.first(x) * 60.0)


class Precise(nn.Module):
    """Distances `[N, 12]` in float64 that differ in their tenth digit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 6).double()

    def forward(self, x: Tensor) -> Any:
        return torch.expm1(self.layer(x) * 1e-6) + 1.0


class UnlikeScales(nn.Module):
    """Features `[N, 6]` to a concentration of about 1e-12 beside a count of about 1e12."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) * torch.tensor([1e-12, 1e12])


class ScoreAndTime(nn.Module):
    """Features `[N, 6]` and times `[N]` in seconds of today to both, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor, time: Tensor) -> Any:
        score = torch.sigmoid(self.layer(x)).double()
        return torch.cat([score, time.unsqueeze(1) + 1.5], 1)


class Scattered(nn.Module):
    """Values `[N, 40]` added up by ids `[N, 40]` of 8 groups, and by fixed groups."""

    groups: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("groups", torch.arange(40) % 5)

    def forward(self, values: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        sums = torch.zeros(values.shape[0], 8).scatter_add(1, ids, values)
        fixed = torch.zeros(values.shape[0], 5).index_add(1, self.groups, values)
        return sums, fixed


class TentMap(nn.Module):
    """Populations `[N, 12]` after 60 generations: each doubles the error of the one before.

    The logistic map, x (1 - x), is as chaotic, and isn't here: Inductor counts the operators of a
    value anew for each of its uses, so that 60 steps of two uses each never end (torch 2.15).
    """

    def forward(self, x: Tensor) -> Any:
        for _ in range(60):
            x = 1.0 - 1.99 * x.abs()
        return x


class LongSums(nn.Module):
    """Steps `[N, 2000]` added up along the way, and factors near 1 multiplied."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.cumsum(x, 1), torch.cumprod(1.0 + 0.01 * torch.tanh(x), 1)


class GroupNormed(nn.Module):
    """Images `[N, 8, 9, 9]` in four groups of channels, some of them nearly constant."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Any:
        return self.norm(x * torch.tensor([1.0, 1.0, 1e-4, 1e-4] * 2)[:, None, None])


class OneRow(nn.Module):
    """One row `[1, 16]`, never more, to four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


class NearCosine(nn.Module):
    """Pairs `[N, 24]` that hardly differ to their similarity, and how far that is from 1."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        other = x + 1e-3 * torch.sin(x * 7.0)
        similar = functional.cosine_similarity(x, other, dim=1)
        return similar, 1.0 - similar


class Distances(nn.Module):
    """Points `[N, 8]` to their distances from 20 others, some of them nearly the same."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(20, 8))

    def forward(self, x: Tensor) -> Any:
        return torch.cdist(x, self.places)


class QuantisedAndBack(nn.Module):
    """Features `[N, 16]` between -1 and 1, rounded to 255 steps, and on through a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rounded = torch.clamp(torch.round(x * 127.0), -127.0, 127.0) / 127.0
        return rounded, self.layer(rounded)


class MixedPrecision(nn.Module):
    """A language model's head on `[N, 7, 32]`: bfloat16 layers between norms in float32.

    The norm casts up and back down as that of the published language models does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32, dtype=torch.bfloat16))
        self.up = nn.Linear(32, 64, bias=False).bfloat16()
        self.down = nn.Linear(64, 32, bias=False).bfloat16()
        self.logits = nn.Linear(32, 50, bias=False).bfloat16()

    def _normalised(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Any:
        h = x + self.down(functional.silu(self.up(self._normalised(x))))
        return self.logits(self._normalised(h)).float()


class Bucketed(nn.Module):
    """Ages `[N, 5]` to the rows of a table for the bucket that each is in."""

    bounds: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bounds", torch.tensor([12.0, 18.0, 25.5, 40.0, 65.0]))
        self.table = nn.Embedding(6, 8)

    def forward(self, age: Tensor) -> tuple[Tensor, ...]:
        bucket = torch.bucketize(age, self.bounds)
        return bucket, self.table(bucket).mean(1)


class HourOfDay(nn.Module):
    """Hours `[N, 8]` of two days to features of the time of day."""

    def forward(self, hour: Tensor) -> Any:
        angle = torch.remainder(hour * 0.25, 6.0)
        return torch.cat([torch.sin(angle), torch.cos(angle)], 1)


class MeanOfNeighbours(nn.Module):
    """GraphSAGE over edges `[2, E]`: nodes `[N, 8]`, and the mean of those that point at each."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        sinks = edges[1][:, None].expand(-1, 8)
        mean = torch.zeros_like(x).scatter_reduce(0, sinks, x[edges[0]], "mean", include_self=False)
        return self.own(x) + self.others(mean)


class SumOfNeighbours(nn.Module):
    """A graph convolution over an edge list `[2, E]`, nodes `[N, 8]`, added up with `index_add`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 6)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        source, sink = edges[0], edges[1]
        degree = torch.ones(x.shape[0]).index_add(0, sink, torch.ones(edges.shape[1]))
        weight = (degree[source] * degree[sink]).rsqrt()
        h = self.layer(x)
        return h / degree[:, None] + torch.zeros_like(h).index_add(
            0, sink, h[source] * weight[:, None]
        )


class GraphAttention(nn.Module):
    """Attention along edges `[2, E]`, nodes `[N, 8]`: a softmax over the edges of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.score = nn.Linear(8, 6), nn.Linear(12, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        source, sink = edges[0], edges[1]
        h = self.layer(x)
        score = functional.leaky_relu(self.score(torch.cat([h[source], h[sink]], 1))[:, 0], 0.2)
        largest = torch.full((x.shape[0],), -1e30).scatter_reduce(0, sink, score, "amax")
        weight = (score - largest[sink]).exp()
        total = torch.zeros(x.shape[0]).index_add(0, sink, weight)
        messages = h[source] * (weight / total[sink])[:, None]
        return torch.zeros_like(h).index_put((sink,), messages, accumulate=True)


class Histogram(nn.Module):
    """Values `[N, 40]` and ids `[N, 40]` of 8 groups: how many are in each, and their mean."""

    def forward(self, values: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        counts = torch.bincount(ids.flatten(), minlength=8)
        sums = torch.zeros(8).index_add(0, ids.flatten(), values.flatten())
        return counts, sums / counts.clamp_min(1)


class RoundedAsInTraining(nn.Module):
    """Features `[N, 16]` fake-quantised all together, a layer's outputs channel by channel."""

    scales: Tensor
    zeros: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.register_buffer("scales", torch.tensor([0.01, 0.02, 0.03, 0.05]))
        self.register_buffer("zeros", torch.tensor([0, 3, -5, 0], dtype=torch.int32))

    def forward(self, x: Tensor) -> Any:
        h = torch.fake_quantize_per_tensor_affine(x, 1.0 / 32.0, 0, -128, 127)
        return torch.fake_quantize_per_channel_affine(
            self.layer(h), self.scales, self.zeros, 1, -128, 127
        )
