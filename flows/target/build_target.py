"""One target of a release, built and blessed on a machine that can run it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from handoff.artifacts.digest import Digest
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.manifest import ANSWER_FILE, TargetAnswer
from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.parameters import Attempt, BuildTargetParameters
from handoff.flows.releasing import open_build_workspace
from handoff.flows.rescheduling import reschedule_machine_faults
from handoff.flows.steps import known_wrong, optimize, receive, send, take_in
from handoff.flows.target.remote_targets import format_answer
from handoff.flows.target.targets import build
from handoff.tasks.conformance.messages import KnownWrongJob
from handoff.tasks.fetch.messages import ReceiveJob, SendJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.registry import assemble
from handoff.tasks.release.processes import Processes


@flow(**policies.BUILD_TARGET)
def build_target(parameters: BuildTargetParameters, attempt: Attempt = 1) -> State[Any]:
    """Build and bless one target of a delivery; the state's message says where the packages are.

    Accepted or refused, the release that has asked for it is told, with what was measured.
    """
    host = host_settings()
    recipe = replace(parameters.parsed_recipe(), targets=(parameters.target,))
    with (
        reschedule_machine_faults(host),
        open_build_workspace(host) as workspace,
        Processes(workspace, recipe, fresh=parameters.rebuild) as processes,
    ):
        receive_job = ReceiveJob(host.stores, Digest(parameters.delivery), workspace / "delivered")
        delivered = receive(processes.registrar(), receive_job).folder
        processes.set_delivery(delivered)
        taken = take_in(processes.graph, IntakeJob(delivered, processes.jobs.staging))
        optimized = optimize(processes.graph, processes.jobs.optimize())
        faults_job = KnownWrongJob(
            host.stores, host.compiler, recipe.resolved_targets(), recipe.options, optimized.calls
        )
        faults = known_wrong.submit(processes.registrar(), faults_job)
        processes.graph.close()
        built = build(
            processes, optimized, assemble.signature_of(taken.contract, optimized), faults
        )
        (record,) = built.records
        answer = TargetAnswer(record, built.toolchain, built.plan, taken.digest, built.asked)
        processes.jobs.release.mkdir(parents=True, exist_ok=True)
        text = json.dumps(to_plain(answer))
        (processes.jobs.release / ANSWER_FILE).write_text(text, encoding="utf-8")
        send_job = SendJob(host.stores, processes.jobs.release, processes.jobs.staging)
        sent = send(processes.registrar(), send_job)
    return Completed(message=format_answer(parameters.label, record.verdict, sent.parts))
