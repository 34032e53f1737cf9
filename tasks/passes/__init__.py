"""Graph passes, one file a pass; `PASSES` names them all, in the order that suits most models."""

from __future__ import annotations

from typing import Any

from tasks.passes.base import Pass
from tasks.passes.carry_nan import CarryNan
from tasks.passes.channels_last import ChannelsLast
from tasks.passes.common_subexpressions import CommonSubexpressions
from tasks.passes.contiguous_linear import ContiguousLinear
from tasks.passes.convolution_to_linear import ConvolutionToLinear
from tasks.passes.cpu_attention import CpuAttention
from tasks.passes.decompose import DecomposeToCore
from tasks.passes.drop_noops import DropInferenceNoops
from tasks.passes.eliminate_dead_code import EliminateDeadCode
from tasks.passes.fold_batch_norm import FoldBatchNorm
from tasks.passes.fold_constants import FoldConstants
from tasks.passes.fold_leading_batch_norm import FoldLeadingBatchNorm
from tasks.passes.lower_precision import LowerPrecision
from tasks.passes.pointwise_to_linear import PointwiseToLinear
from tasks.passes.pool_with_attention import PoolWithAttention
from tasks.passes.prune_low_influence import PruneLowInfluence
from tasks.passes.quantize_weights import QuantizeWeights
from tasks.passes.reciprocal_root import ReciprocalRoot
from tasks.passes.replace_operator import ReplaceOperator
from tasks.passes.widen_conv1d import WidenConv1d

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
