"""What was changed after it was signed is refused by the C++ runner, and nothing of it runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.artifacts.mlflow.canaries import CANARY, Pulled, canary_library, pull_canaries
from tests.artifacts.release.tampering import OPENED, TAMPERINGS, Tampering, call_runner
from tests.artifacts.samples import sample_key
from tests.limits import LIMIT_S

pytestmark = pytest.mark.compile
NAMED = {tampering.what: tampering for tampering in TAMPERINGS}

# Swaps a file on the disk at the very moment when the copy of it was sealed.
SWAPPER = """
#include <dlfcn.h>
#include <fcntl.h>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
extern "C" int fcntl(int descriptor, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  using Fcntl = int (*)(int, int, ...);
  static const auto real = reinterpret_cast<Fcntl>(dlsym(RTLD_NEXT, "fcntl"));
  const int done = real(descriptor, command, argument);
  if (command == F_ADD_SEALS) {
    const int left = std::rename(std::getenv("SWAP_FROM"), std::getenv("SWAP_TO"));
    std::fputs(left == 0 ? "swapped\\n" : "not swapped\\n", stderr);
  }
  return done;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the canaries are built."""
    return tmp_path_factory.mktemp("built")


@pytest.fixture
def pulled(built: Path, tmp_path: Path) -> Pulled:
    """A fresh signed release of canaries."""
    return pull_canaries(tmp_path / "pulled", built)


def call(
    runner: Path, pulled: Pulled, *options: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call the model, whose packages sing to a file beside the folder."""
    canary = {CANARY: str(pulled.folder.parent / "canary")}
    return call_runner(runner, pulled.folder, *options, **canary, **environment)


@pytest.mark.parametrize("what", NAMED)
def test_the_runner_opens_nothing_that_was_tampered_with(
    what: str, runner: Path, pulled: Pulled, built: Path
) -> None:
    tampering = NAMED[what]
    tampering.change(pulled, built)
    ended = call(runner, pulled, *_options(tampering, pulled.folder.parent))
    assert ended.returncode == 1, ended.stderr
    (line,) = ended.stderr.splitlines()
    opened = tampering.runner_pattern == OPENED
    # A canary is opened, and is no model.
    assert ("expected" in line) is not opened
    assert (pulled.folder.parent / "canary").exists() is opened
    if not opened:
        assert re.search(tampering.runner_pattern, line), line
    assert not (pulled.folder.parent / "slipped").exists()


@pytest.mark.parametrize("file", ["model.so", "model.pt2"])
def test_a_file_that_is_swapped_between_check_and_load_is_not_what_is_loaded(
    file: str, runner: Path, pulled: Pulled, built: Path, tmp_path: Path
) -> None:
    (tmp_path / "swapper.cpp").write_text(SWAPPER)
    swapper = tmp_path / "swapper.so"
    command = ["g++", "-shared", "-fPIC", "-o", str(swapper), str(swapper.with_suffix(".cpp"))]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    other, place = tmp_path / "other", pulled.best / file
    other.write_bytes(canary_library("swapped", built))
    ended = call(
        runner, pulled, "--file", file, "--key", _key(tmp_path),
        LD_PRELOAD=str(swapper), SWAP_FROM=str(other), SWAP_TO=str(place),
    )  # fmt: skip
    assert ended.stderr.startswith("swapped\n")
    assert place.read_bytes() == canary_library("swapped", built)
    assert (tmp_path / "canary").read_text() == "released\n"


def test_without_a_key_nothing_is_opened_but_for_who_says_so(
    runner: Path, pulled: Pulled, tmp_path: Path
) -> None:
    ended = call(runner, pulled)
    assert "expected a public key to verify it with, got none" in ended.stderr
    assert not (tmp_path / "canary").exists()
    call(runner, pulled, "--unsigned")
    assert (tmp_path / "canary").read_text() == "released\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no file"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "something else"),
        ("rsa", "a key of another kind"),
        ("x" * 70_000, "at most 65536 bytes"),
    ],
    ids=["none", "broken", "RSA", "too long"],
)
def test_a_file_that_holds_no_key_is_told(
    text: str, message: str, runner: Path, pulled: Pulled, tmp_path: Path
) -> None:
    key = tmp_path / "some.pub"
    if text == "rsa":
        text = _rsa_key()
    if text:
        key.write_text(text)
    ended = call(runner, pulled, "--key", key, "--key", _key(tmp_path))
    assert ended.returncode == 1
    assert message in ended.stderr


@pytest.mark.parametrize(
    "options", [("--unsigned", "--key", "k"), ("--unsigned", "--version", "1"), ("--version", "x")]
)
def test_options_that_contradict_each_other_are_told(
    options: tuple[str, ...], runner: Path, pulled: Pulled
) -> None:
    assert call(runner, pulled, *options).returncode == 64


def _options(tampering: Tampering, folder: Path) -> list[str | Path]:
    return [*tampering.runner_options, "--key", _key(folder)]


def _key(folder: Path) -> Path:
    key = folder / "key.pub"
    key.write_bytes(sample_key().pem)
    return key


def _rsa_key() -> str:
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = generate_private_key(65537, 2048).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
