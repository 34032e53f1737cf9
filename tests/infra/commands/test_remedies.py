"""Each class of refusal: a case of it, what it says to do, and that doing so gets further.

Every case here refuses for real, has its remedy carried out, and gets further. One needs a release
(`test_remedies_of_builds.py`), one a night (the last of `tests/flows/test_release.py`), and each
unsound finding has its own walk in `test_remedies_of_findings.py`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch

from handoff.artifacts.delivery.contract import CONTRACT_FILE, read_contract
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import ERRORS
from handoff.artifacts.host import Stores
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.night import write_night
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.manifest import read_manifest
from handoff.artifacts.release.signing import make_key, open_signer
from handoff.artifacts.serve.checked_inputs import InputChecks
from handoff.artifacts.stores.store import open_store
from handoff.infra.commands.release import require_compiler
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.deliver.messages import DeliverJob, PrepareJob
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run as inspect
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.registry.assemble import refuse_unsound, require_trial_alias
from handoff.tasks.registry.messages import LookUpJob
from tests.artifacts.nights import busy_night, night
from tests.artifacts.samples import write_release
from tests.studies.outages.mlflow_faults import with_uri
from tests.studies.outages.registries import make_place, release, show
from tests.tasks.deliveries import write_delivery
from tests.tasks.fetch.samples import ARCHIVES, assert_fetched
from tests.tasks.registry.registering import some_registry
from tests.tasks.registry.test_promoting import slower
from tests.tls_server import body, tls_server

CONTRACT = """
format = 1
[model]
name = "toy"
[[inputs]]
name = "x"
dtype = "float32"
shape = [4]
"""


def wrong_recipe(folder: Path, *, done: bool) -> None:
    path = folder / "recipe.toml"
    path.write_text("targets = ['cpu-avx2']" if done else "targets = ['cpu-avx9']")
    read_recipe(path)


def no_contract(folder: Path, *, done: bool) -> None:
    if done:
        (folder / CONTRACT_FILE).write_text(CONTRACT)
    read_contract(folder)


class Branches(torch.nn.Module):
    """Decides by a value: with an if, or as the refusal says it."""

    def __init__(self, *, is_mended: bool) -> None:
        super().__init__()
        self.is_mended = is_mended

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_mended:
            return torch.where(x.sum() > 0, x, -x)
        if x.sum() > 0:
            return x
        return -x


def branches_on_a_value(folder: Path, *, done: bool) -> None:
    deliver(Branches(is_mended=done), (torch.ones(4, 8),), folder / "out", name="toy")


def alias_of_what_nobody_ran(_: Path, *, done: bool) -> None:
    recipe = Recipe(targets=("cuda-sm80",))
    require_trial_alias(recipe, "candidate" if done else "production")


def key_open_to_others(folder: Path, *, done: bool) -> None:
    key = folder / "signing.pem"
    make_key(key, folder / "public")
    key.chmod(0o600 if done else 0o644)
    open_signer(str(key))


def nothing_pulled(folder: Path, *, done: bool) -> None:
    if done:
        write_release(folder / "pulled")
    read_manifest(folder / "pulled")


def two_nights_in_a_second(folder: Path, *, done: bool) -> None:
    store = open_store(str(folder / "store"))
    write_night(store, busy_night())
    other = replace(busy_night(), rows=())
    write_night(store, night(3) if done else other)


def no_compiler(folder: Path, *, done: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CXX", "g++" if done else str(folder / "no-such-compiler"))
        require_compiler()


def crashing_factory(folder: Path, *, done: bool) -> None:
    """Mend the factory, and repeat the step by the command that its log holds."""
    factory, log = folder / "factory.py", folder / "step.log"
    if not done:
        factory.write_text("import ctypes\ndef build():\n    ctypes.string_at(0)\n")
        run_step(folder, DeliverJob("factory:build", folder, folder / "out"))
        return
    factory.write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(4, 2).eval(), (torch.ones(8, 4),)\n"
    )
    (line,) = [one for one in log.read_text().splitlines() if one.startswith("repeat with: ")]
    command = shlex.split(line.removeprefix("repeat with: python "))
    again = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert "result" in json.loads(again.stdout)
    assert (folder / "out" / CONTRACT_FILE).is_file()


def out_of_time(folder: Path, *, done: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        if done:
            patched.setenv("HANDOFF_STEP_TIME", "1000")
        stores = Stores(str(folder / "store"), f"sqlite:///{folder / 'none.db'}")
        nothing = digest_bytes(b"")
        asked = LookUpJob("toy", nothing, stores, "candidate", nothing, Recipe(), "g++")
        # Less than it takes to start a process, and a thousand times that.
        run_step(folder, asked, limit_s=0.06)


def out_of_memory(folder: Path, *, done: bool) -> None:
    (folder / "factory.py").write_text(
        "import torch\ndef build():\n    torch.ones(1 << 29)  # 2 GB\n"
        "    return torch.nn.Linear(4, 2).eval(), (torch.ones(8, 4),)\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HANDOFF_STEP_MEMORY", "8G" if done else "1800M")
        run_step(folder, PrepareJob("factory:build", folder, folder / "out"))


def killed_step(folder: Path, *, done: bool) -> None:
    """A step that is killed where memory is scarce, and not on a machine with more."""
    (folder / "factory.py").write_text(
        "import os, signal, torch\ndef build():\n"
        f"    if not {done}:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return torch.nn.Linear(4, 2).eval(), (torch.ones(8, 4),)\n"
    )
    run_step(folder, PrepareJob("factory:build", folder, folder / "out"))


def store_without_room(folder: Path, *, done: bool) -> None:
    place = folder / "place"
    place.unlink() if done else place.touch()
    assert open_store(str(place / "store")).create("selftest/one", b"")


def run_step(folder: Path, job: Any, limit_s: float = 120.0) -> None:
    process = StepProcess(ProcessPlan("bare", writes=(folder,)), folder / "step.log")
    try:
        process.run(job, limit_s=limit_s)
    finally:
        process.close()


class Sized(torch.nn.Module):
    def __init__(self, *, is_mended: bool) -> None:
        super().__init__()
        self.is_mended = is_mended

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] if self.is_mended else 6, 2, 2)


def unsound(folder: Path, *, done: bool) -> None:
    """Write the size as `x.shape[0]`, as the finding says, and deliver again."""
    name = "mended" if done else "delivered"
    given = {"x": torch.randn(6, 4)}
    delivery = write_delivery(folder / name, Sized(is_mended=done), given)
    take_in(IntakeJob(delivery, folder / f"{name}-staging"))
    refuse_unsound(inspect(TraceabilityJob(folder / f"{name}-staging")))


def archive_behind_https(folder: Path, *, done: bool, is_private: bool) -> None:
    """Fetch an archive from a server with a CA of its own, and maybe a login."""
    (folder / "fetched").mkdir(exist_ok=True)
    data = ARCHIVES["tar.gz"]
    login = "Basic " + base64.b64encode(b"me:hunter2").decode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        is_in = not is_private or request.headers["Authorization"] == login
        body(data if is_in else b"", 200 if is_in else 401)(request)

    (tls := folder / f"tls-{done}").mkdir()
    with tls_server(tls) as server, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(folder))
        patched.delenv("SSL_CERT_FILE", raising=False)
        server.answers["/d.tar.gz"] = answer
        if done or is_private:
            patched.setenv("SSL_CERT_FILE", str(server.authority))
        if done:
            netrc = folder / ".netrc"
            netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
            netrc.chmod(0o600)
        digest = hashlib.sha256(data).hexdigest()
        assert_fetched(f"{server.address}/d.tar.gz#sha256={digest}", folder / "fetched" / "new")


def certificate_of_ones_own(folder: Path, *, done: bool) -> None:
    archive_behind_https(folder, done=done, is_private=False)


def login_asked_for(folder: Path, *, done: bool) -> None:
    archive_behind_https(folder, done=done, is_private=True)


def no_such_alias(folder: Path, *, done: bool) -> None:
    kept = folder / "registry"
    if not done:
        kept.mkdir()
        registry = some_registry(kept)
        assert registry.release() == 1
        KEPT["registry"] = registry
    registry = KEPT["registry"]
    if done:
        registry.promote(1)
    assert registry.releases.find("toy", "production").version == 1


def moved_meanwhile(folder: Path, *, done: bool) -> None:
    """Of two who promote at once one is refused, looks who did it, and promotes again."""
    if not done:
        registry = some_registry(folder)
        KEPT["moved"] = registry
        for second in range(3):
            registry.release(f"2026-11-21T03:00:{second:02}+00:00")
        registry.promote(1)
        registry.promote(2)
        registry.promote(3, expected=1, is_conditional=True)
    registry = KEPT["moved"]
    assert registry.entries()[-1].aliases["production"].version == 2
    registry.promote(3, expected=2, is_conditional=True)
    assert registry.releases.find("toy", "production").version == 3


def slower_successor(folder: Path, *, done: bool) -> None:
    """What is slower is refused, and promoted with a reason once somebody has decided that."""
    if not done:
        registry = some_registry(folder)
        KEPT["slower"] = registry
        registry.release(timings=slower(2.0))
        registry.promote(1)
        registry.release("2026-11-22T00:00:00+00:00", timings=slower(1.5))
    registry = KEPT["slower"]
    registry.promote(2, override=done, reason="the old one leaks memory" if done else "")
    assert registry.releases.find("toy", "production").version == 2


def mlflow_is_down(folder: Path, *, done: bool) -> None:
    """Release with nobody listening where MLflow should be; then do what `handoff sync` does."""
    if not done:
        KEPT["place"] = place = make_place(folder / "place")
        with pytest.MonkeyPatch.context() as patched:
            defaults: Any = Catalogue.__init__.__kwdefaults__
            patched.setitem(defaults, "patience_s", 1.0)
            release(with_uri(place, "http://127.0.0.1:9").registry, place.first)
    from mlflow import MlflowClient

    stores = KEPT["place"].registry.stores
    show(stores)
    client = MlflowClient(stores.tracking_uri)
    assert [str(one.version) for one in client.search_model_versions("name = 'toy'")] == ["1"]


def transposed_input(_: Path, *, done: bool) -> None:
    x = torch.ones(4, 8).T
    call(x.contiguous() if done else x)


def another_dtype(_: Path, *, done: bool) -> None:
    x = torch.ones(8, 4).double()
    call(x.to(torch.float32) if done else x)


def call(x: torch.Tensor) -> None:
    """Check a call's inputs, as a loaded model does."""
    spec = TensorSpec("x", "float32", ("batch", 4), -1, 1)
    checks = InputChecks(
        ModelSignature((spec,), dimensions={"batch": Dimension(1, 64)}), device="cpu", values=True
    )
    if not checks.fit((x,)):
        raise checks.refusal((x,))


# What a case keeps from its refusal to its remedy.
KEPT: dict[str, Any] = {}

Case = Callable[..., None]
WALKED: list[tuple[str, Case, str]] = [
    ("UsageProblem", wrong_recipe, "Did you mean cpu-avx2?"),
    ("DeliveryUnreadable", no_contract, "'handoff init FOLDER' writes one"),
    ("NotCapturable", branches_on_a_value, "torch.where and x.shape do the same"),
    ("DeliveryUnsound", unsound, "Write batch as x.shape[...]"),
    ("DeliveryUnreachable", certificate_of_ones_own, "SSL_CERT_FILE"),
    ("DeliveryUnreachable", login_asked_for, "~/.netrc"),
    ("BlessingRefused", alias_of_what_nobody_ran, "Leave --alias out"),
    ("PromotionRefused", slower_successor, "--override with a --reason promotes it"),
    ("PackageRefused", nothing_pulled, "Pull one with"),
    ("StoreFailed", two_nights_in_a_second, "Run one night at a time"),
    ("KeyUnusable", key_open_to_others, "chmod 600 it"),
    ("EnvironmentLacking", no_compiler, "set CXX to a compiler"),
    ("StepCrashed", crashing_factory, "step.log, which also holds the command"),
    ("BudgetSpent", out_of_time, "Set HANDOFF_STEP_TIME to a factor"),
    ("BudgetSpent", out_of_memory, "where HANDOFF_STEP_MEMORY is set, raise it"),
    ("StepKilled", killed_step, "run it on a machine with more"),
    ("StoreUnreachable", store_without_room, "fix the permissions"),
    ("RegistryFailed", no_such_alias, "'handoff promote' sets an alias"),
    ("RegistryFailed", moved_meanwhile, "handoff history"),
    ("NotShownYet", mlflow_is_down, "'handoff sync toy' makes up for it"),
    ("InputsRefused", transposed_input, "Give x.contiguous()"),
    ("InputsRefused", another_dtype, "Give x.to(torch.float32)"),
]
# Walked by a release in test_remedies_of_builds.py, and by a night in tests/flows/test_release.py.
BUILT = {"BuildCrashed", "NightFailed"}


def test_every_class_of_refusal_has_its_walk() -> None:
    walked = {name for name, *_ in WALKED}
    assert walked | BUILT == {*ERRORS}
    assert not walked & BUILT


@pytest.mark.parametrize(
    ("name", "case", "remedy"), WALKED, ids=[f"{name}-{case.__name__}" for name, case, _ in WALKED]
)
def test_doing_what_the_remedy_says_gets_further(
    name: str, case: Case, remedy: str, tmp_path: Path
) -> None:
    if name == "EnvironmentLacking" and shutil.which("g++") is None:
        pytest.skip("there is no g++ here, which the remedy asks for")
    with pytest.raises(ERRORS[name]) as caught:
        case(tmp_path, done=False)
    assert type(caught.value) is ERRORS[name]
    assert remedy in caught.value.remedy
    assert str(caught.value).count("expected") == 1
    case(tmp_path, done=True)
