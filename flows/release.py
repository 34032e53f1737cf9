"""One release: a delivery becomes verified packages in the registry, or a reason why not.

take in -> inspect -> optimize -+-> reference .
                                '-> compile --+-> verify -> search -> probe -> benchmark -> register
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.pages import report_refusals
from handoff.flows.parameters import Attempt, ReleaseParameters
from handoff.flows.releasing import fetch_delivery, make_release, open_build_workspace, plan_release
from handoff.flows.rescheduling import reschedule_machine_faults
from handoff.flows.target.remote_targets import RemoteTargets, find_routes
from handoff.tasks.release.processes import Processes


@flow(**policies.RELEASE)
def release(parameters: ReleaseParameters, attempt: Attempt = 1) -> dict[str, Any]:
    """Release the delivery that `parameters` name; return the registered version.

    A release that was made before from the same is found again, unless a rebuild is asked for.
    `attempt` counts the runs for one request, of which the earlier ones crashed. Raises
    `DeliveryUnreadable`, `DeliveryUnsound`, `BlessingRefused`, `StoreFailed` or `RegistryFailed`;
    nothing is released then, but for `NotShownYet`, which says that it is.
    """
    host = host_settings()
    with (
        reschedule_machine_faults(host),
        open_build_workspace(host) as workspace,
        report_refusals(host, parameters, workspace) as release_attempt,
    ):
        delivery = release_attempt.set_delivery(fetch_delivery(parameters, workspace))
        spec = plan_release(parameters, host, delivery, release_attempt.began)
        elsewhere = find_routes(spec.recipe) if host.is_worker else RemoteTargets()
        with Processes(
            workspace,
            spec.recipe,
            fresh=parameters.rebuild,
            elsewhere=elsewhere.routes,
            delivery=spec.delivery,
        ) as processes:
            return make_release(processes, spec, elsewhere)
