"""One release: a delivery becomes verified packages in the registry, or a reason why not.

take in -> inspect -> optimize -+-> reference .
                                '-> compile --+-> verify -> search -> probe -> benchmark -> register
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from artifacts.registering import KeyJob, LookUpJob
from artifacts.steps import IntakeJob
from flows import policies
from flows.parameters import ReleaseParameters
from flows.registering import register, register_again
from flows.steps import inspect, look_up, open_key, optimize, take_in
from flows.targets import build
from tasks import assemble
from tasks.fingerprint import fingerprint_release
from tasks.lanes import open_lanes


@flow(**policies.RELEASE)
def release(parameters: ReleaseParameters) -> dict[str, Any]:
    """Release the delivery that `parameters` name; return the registered version.

    A release that was made before from the same is found again, unless a rebuild is asked for.
    Raises `DeliveryUnreadable`, `DeliveryUnsound`, `BlessingRefused`, `StoreFailed` or
    `RegistryFailed`; nothing is released then, but for `NotShownYet`, which says that it is.
    """
    recipe = parameters.parsed_recipe()
    assemble.require_trial_alias(recipe, parameters.alias)
    with open_lanes(parameters.workspace, recipe, fresh=parameters.rebuild) as lanes:
        key = open_key.submit(lanes.signer(), KeyJob(parameters.key, parameters.stores.trusted))
        taken = take_in(lanes.graph, IntakeJob(parameters.delivery, lanes.jobs.staging))
        fingerprint = fingerprint_release(taken.digest, recipe, parameters.compiler)
        earlier = look_up.submit(
            lanes.registrar(),
            LookUpJob(taken.contract.model.name, fingerprint, parameters.stores, parameters.alias),
        )
        # What could not be signed is not built.
        key.result()
        judged = inspect(lanes.graph, lanes.jobs.traceability())
        assemble.refuse_unsound(judged)
        known = earlier.result()
        if known.version and not parameters.rebuild:
            model = taken.contract.model.name
            return register_again(lanes, parameters, model, fingerprint, known)
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
        return register(lanes, parameters, manifest)
