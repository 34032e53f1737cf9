"""Commit statuses: what each kind of server is sent, and to whom a token never goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.infra.notifications.forge import (
    CommitStatus,
    Forge,
    TemporarilyUnavailable,
    make_forge,
    shorten,
)
from tests.infra.notifications.receivers import COMMIT, TOKEN, Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def status(state: str = "failure", text: str = "no", link: str = "https://x/run") -> CommitStatus:
    return CommitStatus("team/toy", COMMIT, state, text, link)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "path", "named", "header"),
    [
        ("github", f"/repos/team/toy/statuses/{COMMIT}", "context", f"Bearer {TOKEN}"),
        ("gitea", f"/api/v1/repos/team/toy/statuses/{COMMIT}", "context", f"token {TOKEN}"),
        ("gitlab", f"/api/v4/projects/team%2Ftoy/statuses/{COMMIT}", "name", TOKEN),
    ],
)
def test_each_kind_is_sent_what_its_api_takes(
    kind: str, path: str, named: str, header: str, receiver: Receiver
) -> None:
    forge = make_forge(kind, receiver.url, TOKEN)
    for state in ("pending", "success", "failure", "error"):
        assert forge.post(status(state))
    (first, *_) = receiver.came
    assert first.path == path
    assert header in (first.headers.get("authorization"), first.headers.get("private-token"))
    assert first.body == {
        "state": "pending", named: "handoff/release", "description": "no",
        "target_url": "https://x/run",
    }  # fmt: skip
    failed = ["failed", "failed"] if kind == "gitlab" else ["failure", "error"]
    assert [one.body["state"] for one in receiver.came] == ["pending", "success", *failed]


@pytest.mark.parametrize(("kind", "most"), [("github", 140), ("gitlab", 255), ("gitea", 255)])
def test_a_long_sentence_is_cut_to_the_apis_length(
    kind: str, most: int, receiver: Receiver
) -> None:
    forge = make_forge(kind, receiver.url, TOKEN)
    forge.post(status(text="The output logits\nis wrong: " + "expected the same, " * 40))
    forge.post(status(text="a" * 1000))
    forge.post(status(text="b" * most))
    descriptions = [one.body["description"] for one in receiver.came]
    assert most // 2 < len(descriptions[0]) <= most
    assert descriptions[0].startswith("The output logits is wrong: expected")
    assert descriptions[0].endswith("...")
    assert (len(descriptions[1]), descriptions[2]) == (most, "b" * most)


def test_a_link_that_isnt_one_is_left_out(receiver: Receiver) -> None:
    make_forge("gitea", receiver.url, TOKEN).post(status(link="run 1234"))
    assert "target_url" not in receiver.came[0].body


@pytest.mark.parametrize(
    ("kind", "url", "repository", "path"),
    [
        ("github", "", "https://github.com/team/toy", "team/toy"),
        ("github", "", "https://GitHub.com/team/toy.git", "team/toy"),
        ("github", "", "git@github.com:team/toy.git", "team/toy"),
        ("github", "", "git+ssh://git@github.com/team/toy.git", "team/toy"),
        ("github", "", "team/toy", "team/toy"),
        ("github", "https://hub.example.org/api/v3", "https://hub.example.org/a/b", "a/b"),
        ("gitlab", "", "https://gitlab.com/group/sub/toy", "group/sub/toy"),
        ("gitlab", "https://lab.example.org:8443", "ssh://git@lab.example.org:2222/a/b", "a/b"),
        ("github", "", "https://github.com/group/sub/toy", ""),
        ("github", "", "https://evil.org/team/toy", ""),
        ("github", "", "https://github.com.evil.org/team/toy", ""),
        ("github", "", "https://github.com@evil.org/team/toy", ""),
        ("github", "", "https://github.com/../../user", ""),
        ("github", "", "https://github.com/team/to%2Fy", ""),
        ("github", "", "/srv/git/toy.git", ""),
        ("github", "", "/team/toy", ""),
        ("github", "", "git+file:///srv/toy", ""),
        ("github", "", "toy", ""),
        ("github", "", "", ""),
    ],
)
def test_a_repository_is_one_of_this_server_or_none(
    kind: str, url: str, repository: str, path: str
) -> None:
    assert make_forge(kind, url, TOKEN).path(repository) == path


def test_nothing_is_sent_for_another_server_or_half_a_commit(receiver: Receiver) -> None:
    forge = make_forge("gitea", receiver.url, TOKEN)
    assert not forge.post(CommitStatus("https://evil.org/a/b", COMMIT, "success", "x"))
    assert not forge.post(CommitStatus("team/toy", COMMIT[:12], "success", "x"))
    assert receiver.came == []


@pytest.mark.parametrize(
    ("status_code", "headers", "is_passing"),
    [
        (503, {}, True), (429, {}, True), (403, {"retry-after": "60"}, True),
        (403, {"x-ratelimit-remaining": "0"}, True), (403, {}, False), (401, {}, False),
        (404, {}, False), (422, {}, False), (301, {"location": "http://127.0.0.1:9/"}, False),
    ],
)  # fmt: skip
def test_what_was_refused_is_tried_again_where_that_may_help(
    status_code: int, headers: dict[str, str], is_passing: bool, receiver: Receiver
) -> None:
    receiver.answers = [(status_code, headers, f'{{"message": "no, {TOKEN}"}}')]
    with pytest.raises(EnvironmentLacking, match=f"got HTTP {status_code}: ") as caught:
        make_forge("github", receiver.url, TOKEN).post(status())
    assert isinstance(caught.value, TemporarilyUnavailable) == is_passing
    assert TOKEN not in str(caught.value)


def test_a_server_that_isnt_there_is_tried_again() -> None:
    with pytest.raises(TemporarilyUnavailable, match="got ConnectError"):
        make_forge("github", "http://127.0.0.1:9", TOKEN).post(status())


def test_gitlabs_word_that_it_is_pending_already_is_no_failure(receiver: Receiver) -> None:
    said = '{"message": "Cannot transition status via :enqueue from :pending"}'
    receiver.answers = [(400, {}, said), (400, {}, said)]
    assert make_forge("gitlab", receiver.url, TOKEN).post(status("pending"))
    with pytest.raises(EnvironmentLacking, match="HTTP 400"):
        make_forge("github", receiver.url, TOKEN).post(status("pending"))


@pytest.mark.parametrize(
    ("kind", "url", "token", "message"),
    [
        ("bitbucket", "", TOKEN, "one of github, gitlab, gitea"),
        ("gitea", "", TOKEN, "expected https://HOST"),
        ("gitea", "http://git.example.org", TOKEN, "expected https://HOST"),
        ("gitea", "https://me:pw@git.example.org", TOKEN, "a login or a query"),
        ("github", "", "", "there is no token"),
        ("github", "", "a\nb", "there is no token"),
    ],
)
def test_settings_that_cant_be_are_a_sentence_without_the_token(
    kind: str, url: str, token: str, message: str
) -> None:
    with pytest.raises(UsageProblem, match=message) as caught:
        make_forge(kind, url, token)
    assert TOKEN not in str(caught.value)
    assert "pw" not in str(caught.value)


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(Forge("github", "https://api.github.com", TOKEN))


def test_text_is_cut_at_a_word_and_what_cant_be_printed_is_written_out() -> None:
    assert shorten("one two three", 12) == "one two..."
    assert shorten("one two", 7) == "one two"
    assert shorten("a\x1b[31m", 99) == "a\\x1b[31m"
