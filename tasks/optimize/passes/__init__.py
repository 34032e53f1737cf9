"""Graph passes, one file a pass; `PASSES` names them all, in the order that suits most models."""

from __future__ import annotations

from typing import Any

from handoff.tasks.optimize.passes.base import Pass
from handoff.tasks.optimize.passes.carry_nan import CarryNan
from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from handoff.tasks.optimize.passes.common_subexpressions import CommonSubexpressions
from handoff.tasks.optimize.passes.contiguous_linear import ContiguousLinear
from handoff.tasks.optimize.passes.convolution_to_linear import ConvolutionToLinear
from handoff.tasks.optimize.passes.cpu_attention import CpuAttention
from handoff.tasks.optimize.passes.cpu_convolution import CpuConvolution
from handoff.tasks.optimize.passes.cpu_linear import CpuLinear
from handoff.tasks.optimize.passes.decompose import DecomposeToCore
from handoff.tasks.optimize.passes.drop_noops import DropInferenceNoops
from handoff.tasks.optimize.passes.eliminate_dead_code import EliminateDeadCode
from handoff.tasks.optimize.passes.fold_batch_norm import FoldBatchNorm
from handoff.tasks.optimize.passes.fold_constants import FoldConstants
from handoff.tasks.optimize.passes.fold_leading_batch_norm import FoldLeadingBatchNorm
from handoff.tasks.optimize.passes.lower_precision import LowerPrecision
from handoff.tasks.optimize.passes.pointwise_to_linear import PointwiseToLinear
from handoff.tasks.optimize.passes.pool_with_attention import PoolWithAttention
from handoff.tasks.optimize.passes.prune_low_influence import PruneLowInfluence
from handoff.tasks.optimize.passes.quantize_int8 import QuantizeInt8
from handoff.tasks.optimize.passes.quantize_tables import QuantizeTables
from handoff.tasks.optimize.passes.quantize_weights import QuantizeWeights
from handoff.tasks.optimize.passes.reciprocal_root import ReciprocalRoot
from handoff.tasks.optimize.passes.replace_operator import ReplaceOperator
from handoff.tasks.optimize.passes.squeeze_excite import SqueezeExcite
from handoff.tasks.optimize.passes.tanh_gelu import TanhGelu
from handoff.tasks.optimize.passes.widen_conv1d import WidenConv1d

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
        TanhGelu,
        PruneLowInfluence,
        PoolWithAttention,
        CpuAttention,
        CpuConvolution,
        CpuLinear,
        CarryNan,
        WidenConv1d,
        SqueezeExcite,
        ChannelsLast,
        PointwiseToLinear,
        QuantizeTables,
        QuantizeWeights,
        LowerPrecision,
        QuantizeInt8,
        DecomposeToCore,
    )
}
