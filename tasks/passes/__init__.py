"""Graph passes, one file a pass; `PASSES` names them all, in the order that suits most models."""

from __future__ import annotations

from typing import Any

from handoff.tasks.passes.base import Pass
from handoff.tasks.passes.carry_nan import CarryNan
from handoff.tasks.passes.channels_last import ChannelsLast
from handoff.tasks.passes.common_subexpressions import CommonSubexpressions
from handoff.tasks.passes.contiguous_linear import ContiguousLinear
from handoff.tasks.passes.convolution_to_linear import ConvolutionToLinear
from handoff.tasks.passes.cpu_attention import CpuAttention
from handoff.tasks.passes.decompose import DecomposeToCore
from handoff.tasks.passes.drop_noops import DropInferenceNoops
from handoff.tasks.passes.eliminate_dead_code import EliminateDeadCode
from handoff.tasks.passes.fold_batch_norm import FoldBatchNorm
from handoff.tasks.passes.fold_constants import FoldConstants
from handoff.tasks.passes.fold_leading_batch_norm import FoldLeadingBatchNorm
from handoff.tasks.passes.lower_precision import LowerPrecision
from handoff.tasks.passes.pointwise_to_linear import PointwiseToLinear
from handoff.tasks.passes.pool_with_attention import PoolWithAttention
from handoff.tasks.passes.prune_low_influence import PruneLowInfluence
from handoff.tasks.passes.quantize_weights import QuantizeWeights
from handoff.tasks.passes.reciprocal_root import ReciprocalRoot
from handoff.tasks.passes.replace_operator import ReplaceOperator
from handoff.tasks.passes.widen_conv1d import WidenConv1d

PASSES: dict[str, type[Pass[Any]]] = {
    chosen.name: chosen
    for chosen in (
        DropInferenceNoops,
        ReplaceOperator,
        EliminateDeadCode,
        FoldConstants,
        CommonSubexpressions,
        FoldBatchNorm,
        FoldLeadingBatchNorm,
        ConvolutionToLinear,
        ContiguousLinear,
        ReciprocalRoot,
        PruneLowInfluence,
        PoolWithAttention,
        CpuAttention,
        CarryNan,
        WidenConv1d,
        ChannelsLast,
        PointwiseToLinear,
        QuantizeWeights,
        LowerPrecision,
        DecomposeToCore,
    )
}
