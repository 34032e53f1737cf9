"""Try a contract: the folder has to be a delivery with it, and the model to run as declared."""

from __future__ import annotations

import torch

from handoff.artifacts.delivery.contract import CONTRACT_FILE, format_contract
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.optimize.capture import reason_of
from handoff.tasks.propose.messages import TryJob, TryResult
from handoff.tasks.verify.plan import CaseSpec, draw_inputs

# Beyond the smallest size of each dimension.
_STEPS = (0, 1, 4)


def run(job: TryJob) -> TryResult:
    """Put the contract beside the staged files, read both, and return where the model fails.

    Raises `DeliveryUnreadable` where the contract and module.py disagree.
    """
    contract = format_contract(job.contract)
    (job.staging / CONTRACT_FILE).write_text(contract, encoding="utf-8")
    module = read_delivery(job.staging).module
    signature = job.contract.signature
    failures = []
    for more in _STEPS:
        sizes = {n: min(d.min + more, d.max) for n, d in signature.dimensions.items()}
        inputs = draw_inputs(signature, CaseSpec(f"try {sizes}", sizes, 0))
        try:
            with torch.no_grad():
                module(*inputs)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it is told
            told = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            failures.append(f"{told or 'the declared shapes'}: {reason_of(error)}")
    return TryResult(tuple(dict.fromkeys(failures)))
