"""One release: a delivery becomes verified packages in the registry, or a reason why not.

take in -> inspect -> optimize -+-> reference .
                                '-> compile --+-> verify -> search -> probe -> benchmark -> register
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from artifacts.record import to_plain
from artifacts.steps import IntakeJob, LookUpJob, RegisterJob
from flows import policies
from flows.parameters import ReleaseParameters
from flows.steps import inspect, look_up, optimize, register, take_in
from flows.targets import build
from tasks import assemble
from tasks.fingerprint import fingerprint_release
from tasks.lanes import open_lanes


@flow(**policies.RELEASE)
def release(parameters: ReleaseParameters) -> dict[str, Any]:
    """Release the delivery that `parameters` name; return the registered version.

    A release that was made before from the same is found again, unless a rebuild is asked for.
    Raises `DeliveryUnreadable`, `DeliveryUnsound`, `BlessingRefused`, `StoreFailed` or
    `RegistryFailed`; nothing is registered then.
    """
    recipe = parameters.parsed_recipe()
    assemble.require_trial_alias(recipe, parameters.alias)
    with open_lanes(parameters.workspace, recipe, fresh=parameters.rebuild) as lanes:
        taken = take_in(lanes.graph, IntakeJob(parameters.delivery, lanes.jobs.staging))
        fingerprint = fingerprint_release(taken.digest, recipe, parameters.compiler)
        earlier = look_up.submit(
            lanes.registrar(),
            LookUpJob(taken.contract.model.name, fingerprint, parameters.stores, parameters.alias),
        )
        judged = inspect(lanes.graph, lanes.jobs.traceability())
        assemble.refuse_unsound(judged)
        known = earlier.result().known
        if known and not parameters.rebuild:
            return {**to_plain(known), "reused": True}
        optimized = optimize(lanes.graph, lanes.jobs.optimize())
        # The graph is on disk now, and what read it holds as much memory as a compiler.
        lanes.graph.close()
        signature = assemble.signature_of(taken.contract, optimized)
        built = build(lanes, optimized, signature)
        manifest = assemble.assemble(
            lanes.jobs.release,
            recipe=recipe,
            taken=taken,
            judged=judged,
            fingerprint=fingerprint,
            optimized=optimized,
            signature=signature,
            built=built,
        )
        assemble.require_accepted(manifest)
        job = RegisterJob(manifest, lanes.jobs.release, parameters.stores, parameters.alias)
        registered = register(lanes.registrar(), job)
    return {**to_plain(registered), "reused": False}
