"""Pretending: what torch answers meanwhile, and that it is itself again afterwards."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from types import SimpleNamespace

import pytest
import torch

from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking
from handoff.artifacts.machine.gpu import KIB, PROFILES
from handoff.tasks.compile import patching
from handoff.tasks.compile.cross import simulated_gpu
from handoff.tasks.compile.cross.retarget import Weights, retarget
from handoff.tasks.compile.cross.simulated_gpu import pretend_gpu
from handoff.tasks.compile.cross.toolkit import can_add_ptx
from tests.tasks.compile.cross import models
from tests.tasks.compile.cross.state import OWNERS, find, state

pytestmark = models.needs_known_torch


@pytest.fixture(autouse=True)
def imported() -> None:
    """Let what is imported late be imported before a state is looked at."""
    with pretend_gpu(PROFILES["sm_80"]):
        pass


def test_torch_is_as_before_on_leaving() -> None:
    before = state()
    with pretend_gpu(PROFILES["sm_90"]):
        meanwhile = state()
        # Triton's autotuner sets it in passing.
        os.environ.setdefault("TRITON_CACHE_DIR", "/nowhere")
    assert state() == before
    changed = {name.rpartition(".")[0] for name in before if before[name] != meanwhile.get(name)}
    unpatched = {"torch._dynamo.device_interface.CudaInterface.Worker"}
    # There, only what adds PTX is patched.
    unpatched |= set() if can_add_ptx() else {"torch._inductor.codecache"}
    assert changed >= set(OWNERS) - unpatched


def test_every_patch_belongs_to_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[object] = []

    def recorded(owner: object, name: str, value: object) -> AbstractContextManager[None]:
        owners.append(owner)
        return patching.patch_attribute(owner, name, value)

    monkeypatch.setattr(simulated_gpu, "patch_attribute", recorded)
    with pretend_gpu(PROFILES["sm_90"]):
        assert len(owners) > 20
    compared = [find(name) for name in OWNERS]
    assert all(any(owner is other for other in compared) for owner in owners)


def test_torch_is_as_before_after_an_exception() -> None:
    before = state()
    with pytest.raises(ZeroDivisionError, match="meanwhile"), pretend_gpu(PROFILES["sm_90"]):
        raise ZeroDivisionError("meanwhile" if state() != before else "as before")
    assert state() == before


def test_torch_is_as_before_when_a_piece_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    helpers = find("torch._inductor.runtime.triton_helpers")
    monkeypatch.delattr(helpers, "set_driver_to_gpu")
    before = state()
    with (
        pytest.raises(EnvironmentLacking, match=r"has moved .*\.triton_helpers\.set_driver_to"),
        pretend_gpu(PROFILES["sm_90"]),
    ):
        pytest.fail("it was entered")
    assert state() == before


def test_refuses_when_what_remembers_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(simulated_gpu._CACHED_FUNCTIONS, "torch.utils._triton", ("has_tritons",))
    with (
        pytest.raises(EnvironmentLacking, match=r"_triton\.has_tritons, which remembers"),
        pretend_gpu(PROFILES["sm_90"]),
    ):
        pytest.fail("it was entered")


def test_answers_for_the_gpu_that_is_named_one_after_the_other() -> None:
    hints = find("torch._inductor.runtime.hints")
    compiler = find("triton.compiler.compiler")
    interface = find("torch._dynamo.device_interface.CudaInterface")
    device = torch.device("cuda", 0)
    expected = {"sm_90": (90, 132, 227 * KIB), "sm_86": (86, 72, 99 * KIB)}
    for slug, (capability, count, shared) in expected.items():
        with pretend_gpu(PROFILES[slug]):
            properties = hints.DeviceProperties.create(device)
            assert (properties.cc, properties.multi_processor_count) == (capability, count)
            assert compiler.max_shared_mem(0) == shared
            assert interface.get_compute_capability() == capability
            assert torch.cuda.get_device_name() == PROFILES[slug].name
            target = find("triton.runtime.driver.driver").active.get_current_target()
            assert (target.backend, target.arch, target.warp_size) == ("cuda", capability, 32)
            assert torch.cuda.is_available()


def test_nothing_is_timed_or_launched() -> None:
    benchmarker = find("torch._inductor.runtime.benchmarking.benchmarker")
    driver = find("triton.runtime.driver.driver")
    with pretend_gpu(PROFILES["sm_90"]):
        with pytest.raises(RuntimeError, match="wanted to time a kernel where there is no GPU"):
            benchmarker.benchmark(lambda: None, device="cpu")
        with pytest.raises(RuntimeError, match="a kernel was launched where there is no GPU"):
            driver.active.launcher_cls(None, None)()


def test_weights_of_one_shape_are_told_apart() -> None:
    """Inductor compares constants by address, which fakes have none of (or all the address 0)."""
    moved = retarget(models.two_layers())
    one, other = (moved.state_dict[f"{name}.weight"] for name in ("first", "second"))
    graph = find("torch._inductor.graph")
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        graph.is_same_tensor(one, other)
    with pretend_gpu(PROFILES["sm_90"]):
        assert not graph.is_same_tensor(one, other)
        assert graph.is_same_tensor(one, one.detach())


def test_refuses_a_constant_that_was_computed_from_weights() -> None:
    program = models.two_layers()
    moved = retarget(program)
    weight = moved.state_dict["first.weight"]
    lowering = find("torch._inductor.graph").GraphLowering
    graph = SimpleNamespace(constants={"as_it_is": weight, "turned": weight.detach().t()})
    with pretend_gpu(PROFILES["sm_90"], weights=Weights(program, moved)):
        assert lowering.get_original_value_of_constant(graph, "as_it_is").is_cuda
        with pytest.raises(BlessingRefused, match="made turned from weights, which have no values"):
            lowering.get_original_value_of_constant(graph, "turned")
    with (
        pretend_gpu(PROFILES["sm_90"]),
        pytest.raises(BlessingRefused, match="made as_it_is from weights"),
    ):
        lowering.get_original_value_of_constant(graph, "as_it_is")
