"""Graph passes, one file a pass; `PASSES` names them all."""

from __future__ import annotations

from typing import Any

from tasks.passes.base import Pass
from tasks.passes.drop_noops import DropInferenceNoops
from tasks.passes.fold_batch_norm import FoldBatchNorm
from tasks.passes.replace_operator import ReplaceOperator

PASSES: dict[str, type[Pass[Any]]] = {
    chosen.name: chosen for chosen in (DropInferenceNoops, FoldBatchNorm, ReplaceOperator)
}
