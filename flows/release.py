"""One release: a delivery becomes verified packages in the registry, or a reason why not.

take in -> inspect -> optimize -+-> reference .
                                '-> compile --+-> verify -> search -> probe -> benchmark -> register
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.pages import refusals_shown
from handoff.flows.parameters import Attempt, ReleaseParameters
from handoff.flows.releasing import delivered_folder, make_release, opened_workspace, wanted_release
from handoff.flows.rescheduling import handed_back
from handoff.flows.target.elsewhere import Elsewhere, find_routes
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
        handed_back(host),
        opened_workspace(host) as workspace,
        refusals_shown(host, parameters, workspace) as attempted,
    ):
        delivery = attempted.know(delivered_folder(parameters, workspace))
        wanted = wanted_release(parameters, host, delivery, attempted.began)
        elsewhere = find_routes(wanted.recipe) if host.is_worker else Elsewhere()
        with Processes(
            workspace,
            wanted.recipe,
            fresh=parameters.rebuild,
            elsewhere=elsewhere.routes,
            delivery=wanted.delivery,
        ) as processes:
            return make_release(processes, wanted, elsewhere)
