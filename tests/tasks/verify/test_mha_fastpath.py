"""Attention layers in eager: computed as they are captured, also where a row is padding alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff import deliver
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.step import run as optimize
from handoff.tasks.verify.mha_fastpath import by_definition


class Encoder(nn.Module):
    """A text encoder as it stands in torch's documentation, with padding."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
        # Norms that come last let it take nested tensors, which leave zeros where padding is.
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x: Tensor = self.layers(self.tokens(ids), src_key_padding_mask=~mask)
        return x.mean(1)


IDS, MASK = torch.arange(12).reshape(3, 4), torch.ones(3, 4, dtype=torch.bool)
PADDING = torch.tensor([[True] * 4, [False] * 4, [True, False, False, False]])


def test_a_row_of_padding_alone_has_numbers_by_definition_and_not_when_fused() -> None:
    model = Encoder(norm_first=True).eval()
    with torch.no_grad():
        fused = model(IDS, PADDING)
        with by_definition():
            defined = model(IDS, PADDING)
        assert fused.isnan().any(1).tolist() == [False, True, False]
        assert defined.isfinite().all()
        torch.testing.assert_close(fused[[0, 2]], defined[[0, 2]])
        # As it was before: what is timed is timed with it.
        assert model(IDS, PADDING).isnan().any()


def test_the_fused_kernel_is_allowed_again_after_an_error_and_only_where_it_was() -> None:
    def fail() -> None:
        with by_definition():
            raise ValueError("in the body")

    with pytest.raises(ValueError, match="in the body"):
        fail()
    assert torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with by_definition():
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_whose_masks_may_be_padding_alone_goes_through_the_passes(
    tmp_path: Path, *, norm_first: bool
) -> None:
    deliver(
        Encoder(norm_first=norm_first).eval(), (IDS, MASK), tmp_path / "delivery", name="encoder",
        dynamic={"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}},
    )  # fmt: skip
    take_in(IntakeJob(tmp_path / "delivery", tmp_path / "staging"))
    result = optimize(OptimizeJob(tmp_path / "staging", tmp_path / "program", Recipe()))
    changed = {effect.name for effect in result.effects if effect.modified}
    assert "contiguous-linear" in changed
    assert not any(effect.left_out for effect in result.effects)
