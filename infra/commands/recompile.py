"""`handoff recompile`: a night by hand, in this process, one model after the other."""

from __future__ import annotations

from collections.abc import Callable

from handoff.artifacts.errors import NightFailed
from handoff.artifacts.night import read_nights
from handoff.artifacts.record import to_plain
from handoff.artifacts.stores.store import open_store
from handoff.infra.commands.registry import parse_reference, require_alias
from handoff.infra.commands.release import require_compiler
from handoff.infra.prefect.flow_calls import call_flow
from handoff.infra.settings import read_settings, require_writable_home
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo
from handoff.infra.terminal.progress import shown_progress


def recompile_models(models: tuple[str, ...], alias: str, *, as_json: bool) -> int:
    """Rebuild the models that `alias` serves; print the night and return its exit status.

    Raises `NightFailed` after it was printed, where a model could not be rebuilt.
    """
    settings = read_settings()
    require_alias(alias)
    for model in models:
        parse_reference(model)
    require_compiler()
    require_writable_home(settings)

    def load() -> Callable[[], object]:
        from handoff.flows.nightly.recompile import recompile
        from handoff.flows.parameters import RecompileParameters

        # By hand, nobody waits half an hour for what 'handoff conformance' does.
        parameters = RecompileParameters(alias=alias, models=list(models), conformance=False)
        return lambda: recompile(parameters)

    failed: NightFailed | None = None
    try:
        with shown_progress():
            call_flow(settings, None, load)
    except NightFailed as error:
        # The night's record is kept either way.
        failed = error
    (night,) = read_nights(open_store(settings.stores.objects), 1)
    if as_json:
        print_json({**to_plain(night), "exit_status": night.exit_status})
    else:
        from handoff.tasks.nightly.night_page import text_table

        echo(text_table(night))
    if failed is not None:
        raise failed
    return night.exit_status
