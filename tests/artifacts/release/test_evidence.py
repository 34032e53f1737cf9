"""Which variant a search ships, and which ones are on the front."""

from __future__ import annotations

from handoff.artifacts.release.evidence import Candidate, choose, pareto


def candidate(name: str, *ratios: tuple[float, float, float], error: float = 1e-6) -> Candidate:
    """A variant with a low end, a median and a high end for each timed input."""
    return Candidate(
        name, accepted=True, compile_s=1.0, size_bytes=100, max_abs=error,
        times_s=tuple(1.0 / middle for _, middle, _ in ratios),
        ratios_low=tuple(low for low, _, _ in ratios),
        ratios=tuple(middle for _, middle, _ in ratios),
        ratios_high=tuple(high for _, _, high in ratios),
    )  # fmt: skip


PLAIN = candidate("plain", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))


def test_the_fastest_variant_is_shipped() -> None:
    fast = candidate("fast", (1.1, 1.2, 1.3), (1.4, 1.5, 1.6))
    faster = candidate("faster", (1.1, 1.2, 1.3), (1.9, 2.0, 2.1))
    assert choose((PLAIN, fast, faster)) is faster


def test_what_may_be_noise_is_not_faster() -> None:
    assert choose((PLAIN, candidate("noisy", (0.9, 1.3, 1.5), (0.8, 1.2, 1.4)))) is PLAIN


def test_what_is_slower_at_one_size_is_not_shipped() -> None:
    assert choose((PLAIN, candidate("large", (0.7, 0.8, 0.9), (2.0, 2.1, 2.2)))) is PLAIN


def test_a_goal_lets_one_size_decide() -> None:
    slow, fast = (0.7, 0.8, 0.9), (2.0, 2.1, 2.2)
    small = candidate("small", fast, slow, slow)
    example = candidate("example", slow, fast, slow)
    large = candidate("large", slow, slow, fast)
    tried = (PLAIN, small, example, large)
    assert choose(tried, "latency") is small
    assert choose(tried, "example") is example
    assert choose(tried, "throughput") is large
    assert choose(tried) is PLAIN


def test_what_was_refused_is_not_shipped_however_fast() -> None:
    refused = Candidate("wrong", accepted=False, reasons=("wrong",), ratios=(9.0,),
                        ratios_low=(9.0,), ratios_high=(9.0,))  # fmt: skip
    assert choose((PLAIN, refused)) is PLAIN


def test_the_front_holds_what_nothing_beats_in_everything() -> None:
    fast = candidate("fast", (1.5, 1.6, 1.7), error=1e-5)
    worse = candidate("worse", (1.4, 1.5, 1.6), error=1e-4)
    same = candidate("same", (1.5, 1.6, 1.7), error=1e-5)
    names = [one.name for one in pareto((PLAIN, fast, worse, same))]
    assert names == ["plain", "fast"]
