"""Delivery URIs: what is read is what was meant, and secrets are refused and never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.delivery.uri import (
    ArchiveSource,
    GitSource,
    LocalSource,
    S3Source,
    absolute_delivery_uri,
    is_plain_path,
    parse_delivery_uri,
    redact_uri,
)
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import UsageProblem

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HEX = "ab" * 32
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
hosts = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z]{2,5}){0,2}(:[1-9][0-9]{1,3})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("/data/delivery", LocalSource(Path("/data/delivery"))),
        ("file:///data/my%20delivery", LocalSource(Path("/data/my delivery"))),
        ("s3://models/in/resnet18/", S3Source("models", "in/resnet18")),
        (
            f"https://host/d.tar.gz?run=7#sha256={HEX}",
            ArchiveSource("https://host/d.tar.gz?run=7", Digest(f"sha256:{HEX}")),
        ),
        (
            f"git+https://host:8443/a/b.git@{COMMIT}#subdirectory=out/delivery",
            GitSource("https://host:8443/a/b.git", COMMIT, "out/delivery"),
        ),
        (f"git+ssh://git@host/a/b@{COMMIT}", GitSource("ssh://git@host/a/b", COMMIT)),
        (f"git+file:///srv/b.git@{COMMIT}", GitSource("file:///srv/b.git", COMMIT)),
    ],
)
def test_reads_what_was_meant(text: str, source: object) -> None:
    assert parse_delivery_uri(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "", "-x", "delivery", "../delivery", "/data/../etc", "http://host/d.tar", "ftp://host/d",
        "ext::sh -c 'touch x'", "host:path", "s3://models", "s3://models/", "s3://M/x",
        "s3://models/a/../b", "s3://models//a", "https://host/d.tar.gz",
        f"https://host/d#md5={HEX}", f"https://host/d#sha256={HEX[:-1]}", f"https:///d#sha256={HEX}",
        "git+https://host/r.git", "git+https://host/r.git@main", f"git+https://host@{COMMIT}",
        f"git+https://host/r@{COMMIT[:12]}", f"git+https://-o/r@{COMMIT}",
        f"git+https://host/r@{COMMIT}#egg=x", f"git+https://host/r@{COMMIT}#subdirectory=../x",
        f"git+https://host/r@{COMMIT}#subdirectory=%2e%2e/x", f"git+http://host/r@{COMMIT}",
        f"git+ext://sh/r@{COMMIT}", f"git+ssh://-oProxyCommand=x/r@{COMMIT}",
        f"git+ssh://-x@host/r@{COMMIT}", f"git+file://host/r@{COMMIT}", "file://host/x",
        "/data/de\nlivery", "https://[::1/d#sha256=" + HEX, "x" * 2001,
    ],
)  # fmt: skip
def test_refuses_everything_else_with_a_sentence(text: str) -> None:
    with pytest.raises(UsageProblem, match="the delivery's address can't be used: expected"):
        parse_delivery_uri(text)


@pytest.mark.parametrize(
    "text",
    [
        f"https://me:hunter2@host/d#sha256={HEX}",
        f"https://hunter2@host/d#sha256={HEX}",
        f"https://host/d?X-Amz-Signature=hunter2#sha256={HEX}",
        f"https://host/d?a=1&private_token=hunter2#sha256={HEX}",
        f"https://host/d?sig=hunter2#sha256={HEX}",
        f"git+https://oauth2:hunter2@host/r@{COMMIT}",
        f"git+https://hunter2@host/r@{COMMIT}",
        f"git+ssh://git:hunter2@host/r@{COMMIT}",
        "s3://KEY:hunter2@models/x",
        "http://me:hunter2@host/d?token=hunter2",
    ],
)
def test_an_address_with_a_secret_is_refused_and_the_secret_is_not_repeated(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_delivery_uri(text)
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        source = parse_delivery_uri(text)
    except UsageProblem:
        return
    assert isinstance(source, LocalSource)
    assert source.path.is_absolute()


@given(hosts, paths, st.text("0123456789abcdef", min_size=40, max_size=40), paths)
def test_what_a_git_address_is_made_of_is_found_again(
    host: str, path: str, commit: str, folder: str
) -> None:
    source = parse_delivery_uri(f"git+https://{host}/{path}@{commit}#subdirectory={folder}")
    assert source == GitSource(f"https://{host}/{path}", commit, folder)


@given(st.text(max_size=40), paths)
def test_a_plain_path_never_leaves_its_folder(strange: str, path: str) -> None:
    for text in (strange, f"{path}/{strange}", f"{strange}/{path}"):
        if is_plain_path(text):
            joined = Path("/root").joinpath(text)
            assert "/root/" in f"{joined}/"
            assert ".." not in joined.parts
            assert joined.relative_to("/root").as_posix() == text
    assert is_plain_path(path) == all(part not in (".", "..") for part in path.split("/"))


def test_a_relative_path_becomes_absolute_and_another_address_stays(tmp_path: Path) -> None:
    assert absolute_delivery_uri("delivery", tmp_path) == str(tmp_path / "delivery")
    assert absolute_delivery_uri("s3://models/x", tmp_path) == "s3://models/x"
    assert absolute_delivery_uri("../x", tmp_path) == str(tmp_path.parent / "x")


def test_a_redacted_address_shows_host_and_path_alone() -> None:
    assert redact_uri("https://a:b@host/x?token=t#f") == "https://...@host/x?...#f"
