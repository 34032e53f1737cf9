"""What the webhook's parts do: configuration, signatures, events, buckets, memory."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.delivery.uri import parse_delivery_uri
from handoff.artifacts.errors import UsageProblem
from handoff.infra.triggers.events import (
    PayloadInvalid,
    arrivals_of,
    is_authentic,
    is_below,
    replay_key,
    sign,
)
from handoff.infra.triggers.hooks import Source, SourceWithSecret, read_hooks
from handoff.infra.triggers.webhook import AnswerCache, TokenBuckets, address_group

EXAMPLE = Path(__file__).parents[3] / "examples" / "triggers" / "hooks.toml"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "0123456789abcdef" * 2
GITHUB = Source(
    "github", secret_env="S", repository="team/toy", model="toy",
    delivery="git+https://host/team/toy.git@{commit}#subdirectory=delivery",
)  # fmt: skip
GITLAB = replace(GITHUB, kind="gitlab")
S3 = Source("s3", secret_env="S", bucket="models", prefix="in", model="{name}")
OWN = Source("handoff", secret_env="S", deliveries=("s3://models/in/",))


# The configuration.


def test_the_example_is_a_configuration_whose_secrets_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    text = EXAMPLE.read_text().replace("/run/secrets/gitlab-hook", str(tmp_path / "secret"))
    (tmp_path / "hooks.toml").write_text(text)
    guarded, limits = read_hooks(tmp_path / "hooks.toml", lambda _: SECRET)
    assert [one.source.kind for one in guarded] == ["github", "gitlab", "s3", "handoff"]
    assert limits.body_bytes == 2 << 20
    assert all(one.secret == SECRET for one in guarded)
    assert SECRET not in repr(guarded)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "source"),
        ("[[source]]\nkind = 'gitea'\nsecret_env = 'S'", "one of 'github', 'gitlab'"),
        ("[[source]]\nkind = 's3'\nbucket = 'm'", "one of secret_env and secret_file"),
        ("[[source]]\nkind = 's3'\nsecret_env = 'S'", "expected bucket"),
        ("[[source]]\nkind = 'github'\nsecret_env = 'S'", "expected repository"),
        (
            "[[source]]\nkind = 'github'\nsecret_env = 'S'\nrepository = 'a/b'\nmodel = 'm'\n"
            "delivery = 's3://models/{ref}'", "{ref} instead of {commit} as the only",
        ),
        (
            "[[source]]\nkind = 'github'\nsecret_env = 'S'\nrepository = 'a/b'\nmodel = 'm'\n"
            "delivery = 'https://me:pw@host/{commit}'", "without a password",
        ),
        ("[[source]]\nkind = 'handoff'\nsecret_env = 'S'", "one of delivery and deliveries"),
        (
            "[[source]]\nkind = 'handoff'\nsecret_env = 'S'\ndeliveries = ['s3://models']",
            "to end in /",
        ),
        (
            "[[source]]\nkind = 'handoff'\nsecret_env = 'S'\ndeliveries = ['file:///']",
            "a scheme and a host",
        ),
        (
            "[[source]]\nkind = 's3'\nbucket = 'm'\nsecret_env = 'S'\n[limits]\nbody_bytes = 9",
            "body_bytes from 1024",
        ),
        ("[[source]]\nkind = 's3'\nbucket = 'm'\nsecret_env = 'S'\nport = 1", "no other keys"),
        ("[[source", "no webhook configuration"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused_with_the_place(
    text: str, match: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks.toml").write_text(text)
    with pytest.raises(UsageProblem, match=match):
        read_hooks(tmp_path / "hooks.toml", lambda _: SECRET)


def test_a_short_or_missing_secret_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "hooks.toml").write_text(
        "[[source]]\nkind = 's3'\nbucket = 'm'\nsecret_env = 'HOOK'"
    )
    with pytest.raises(UsageProblem, match="at least 16 ASCII characters in HOOK") as caught:
        read_hooks(tmp_path / "hooks.toml", lambda _: "hunter2")
    assert "hunter2" not in str(caught.value)


# Signatures.


def test_githubs_own_example_fits_and_nothing_else_does() -> None:
    guarded = SourceWithSecret(GITHUB, "It's a Secret to Everybody")
    body = b"Hello, World!"
    # What openssl says: dgst -sha256 -hmac "It's a Secret to Everybody"
    given_ = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert is_authentic(guarded, {"x-hub-signature-256": given_}, body, 0)
    assert not is_authentic(guarded, {"x-hub-signature-256": given_}, body + b"!", 0)
    assert not is_authentic(guarded, {"x-hub-signature-256": given_[:-1] + "f"}, body, 0)
    assert not is_authentic(guarded, {"x-hub-signature": given_}, body, 0)
    assert not is_authentic(guarded, {}, body, 0)


def test_standard_webhooks_own_example_fits_within_five_minutes() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body, then = b'{"test": 2432232314}', 1614265330
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": str(then),
        "webhook-signature": "v1a,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }  # fmt: skip
    for source in (OWN, GITLAB):
        guarded = SourceWithSecret(source, secret)
        assert is_authentic(guarded, headers, body, then + 299)
        assert not is_authentic(guarded, headers, body, then + 301)
        assert not is_authentic(guarded, headers, body, then - 301)
        assert not is_authentic(guarded, headers, body + b" ", then)
        for name in headers:
            assert not is_authentic(guarded, {**headers, name: "1"}, body, then)
            assert not is_authentic(guarded, {**headers, name: ""}, body, then)
        assert not is_authentic(guarded, {**headers, "webhook-timestamp": "٣"}, body, then)


def test_gitlabs_signing_token_isnt_given_up_for_its_older_token() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert not is_authentic(SourceWithSecret(GITLAB, secret), {"x-gitlab-token": secret}, b"", 0)
    assert is_authentic(SourceWithSecret(GITLAB, SECRET), {"x-gitlab-token": SECRET}, b"", 0)
    assert not is_authentic(
        SourceWithSecret(GITLAB, SECRET), {"x-gitlab-token": SECRET + "0"}, b"", 0
    )


def test_s3_sends_a_bearer_token() -> None:
    guarded = SourceWithSecret(S3, SECRET)
    assert is_authentic(guarded, {"authorization": f"Bearer {SECRET}"}, b"", 0)
    assert not is_authentic(guarded, {"authorization": f"Basic {SECRET}"}, b"", 0)
    assert not is_authentic(guarded, {"authorization": SECRET}, b"", 0)


@given(st.binary(max_size=50), st.text(max_size=60), st.text(max_size=60))
def test_no_other_header_fits(body: bytes, name: str, value: str) -> None:
    named = ("x-hub-signature-256", "x-gitlab-token", "authorization", "webhook-signature")
    headers = {**dict.fromkeys(named, value), "webhook-id": name, "webhook-timestamp": "0"}
    for source in (GITHUB, GITLAB, S3, OWN):
        assert not is_authentic(SourceWithSecret(source, SECRET), headers, body, 0)


def test_a_replay_with_another_unsigned_id_is_the_same_and_a_signed_id_counts() -> None:
    assert replay_key("github", {"x-github-delivery": "1"}, b"b") == replay_key("github", {}, b"b")
    signed = {"webhook-signature": "v1,x"}
    assert replay_key("handoff", {**signed, "webhook-id": "1"}, b"") != replay_key(
        "handoff", signed, b""
    )
    assert sign(SECRET, "1", 2, b"x") != sign(SECRET, "1", 3, b"x")


# Events.


def github_push(**changed: Any) -> dict[str, Any]:
    return {
        "ref": "refs/heads/main", "after": COMMIT, "deleted": False,
        "repository": {"full_name": "team/toy", "html_url": "https://github.com/team/toy"},
        "pusher": {"name": "ada"}, **changed,
    }  # fmt: skip


def test_a_push_to_the_branch_is_an_arrival_and_other_events_are_none() -> None:
    push = {"x-github-event": "push"}
    (arrival,) = arrivals_of(GITHUB, push, github_push())
    assert arrival.delivery == f"git+https://host/team/toy.git@{COMMIT}#subdirectory=delivery"
    assert (arrival.commit, arrival.model, arrival.by) == (COMMIT, "toy", "ada@github")
    assert arrival.repository == "https://github.com/team/toy"
    assert arrivals_of(GITHUB, {"x-github-event": "ping"}, {"zen": "x"}) == ()
    assert arrivals_of(GITHUB, push, github_push(ref="refs/heads/other")) == ()
    assert arrivals_of(GITHUB, push, github_push(ref="refs/tags/main")) == ()
    assert arrivals_of(GITHUB, push, github_push(after="0" * 40)) == ()
    other = {"full_name": "team/other"}
    assert arrivals_of(GITHUB, push, github_push(repository=other)) == ()
    for wrong in ("main", COMMIT + "#subdirectory=x", COMMIT.upper(), None, ["x"]):
        with pytest.raises(PayloadInvalid):
            arrivals_of(GITHUB, push, github_push(after=wrong))


def test_gitlabs_push_is_read_too() -> None:
    payload = {
        "object_kind": "push", "ref": "refs/heads/main", "after": COMMIT, "user_username": "ada",
        "project": {"path_with_namespace": "team/toy", "web_url": "https://gitlab/team/toy"},
    }  # fmt: skip
    (arrival,) = arrivals_of(GITLAB, {}, payload)
    assert (arrival.commit, arrival.by) == (COMMIT, "ada@gitlab")
    assert arrivals_of(GITLAB, {}, {**payload, "object_kind": "tag_push"}) == ()


def record(key: str, bucket: str = "models", event: str = "s3:ObjectCreated:Put") -> Any:
    return {
        "eventName": event,
        "s3": {"bucket": {"name": bucket}, "object": {"key": key, "eTag": "e", "sequencer": "1"}},
    }


def test_a_delivery_in_s3_is_told_of_by_its_contract() -> None:
    records = [
        record("in/toy/state_dict.pt"), record("in%2Ftoy/delivery.toml"),
        record("in/toy/delivery.toml"), record("inside/toy/delivery.toml"),
        record("in/toy/delivery.toml", bucket="other"),
        record("in/toy/delivery.toml", event="s3:ObjectRemoved:Delete"),
        record("in/../toy/delivery.toml"), record("delivery.toml"),
    ]  # fmt: skip
    (arrival,) = arrivals_of(S3, {}, {"Records": records})
    assert (arrival.delivery, arrival.model) == ("s3://models/in/toy", "toy")
    again = arrivals_of(S3, {}, {"Records": [record("in/toy/delivery.toml")]})
    assert again == (arrival,)
    newer = record("in/toy/delivery.toml")
    newer["s3"]["object"]["sequencer"] = "2"
    assert arrivals_of(S3, {}, {"Records": [newer]})[0].key != arrival.key
    with pytest.raises(UsageProblem, match="a model name"):
        arrivals_of(S3, {}, {"Records": [record("in/To+y/delivery.toml")]})


def test_our_own_payload_names_deliveries_below_what_is_allowed() -> None:
    own = {"model": "toy", "commit": COMMIT, "delivery": "s3://models/in/toy", "by": "ci"}
    (arrival,) = arrivals_of(OWN, {}, own)
    assert (arrival.delivery, arrival.key) == (own["delivery"], f"release:toy:{COMMIT}")
    for wrong in (
        "s3://models/other/toy", "/etc", "s3://models/in/../x", "s3://models/in/%2e%2e/x", "",
    ):  # fmt: skip
        with pytest.raises(PayloadInvalid):
            arrivals_of(OWN, {}, {**own, "delivery": wrong})
    more: tuple[dict[str, Any], ...] = ({"alias": "production"}, {"recipe": {}}, {"commit": 7})
    for changed in more:
        with pytest.raises(PayloadInvalid):
            arrivals_of(OWN, {}, {**own, **changed})


@given(st.text(max_size=40), st.text(max_size=40))
def test_what_is_below_a_beginning_stays_below_it(tail: str, other: str) -> None:
    beginning = "https://host/a/"
    if is_below(beginning + tail, (beginning,)):
        assert ".." not in tail.partition("#")[0]
    assert not is_below(other, (f"x{other}/",))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["ref", "after", "repository", "Records", "s3", "object", "key", "x"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_any_payload_is_understood_ignored_or_refused(payload: object) -> None:
    for source in (GITHUB, GITLAB, S3, OWN):
        try:
            arrivals = arrivals_of(source, {"x-github-event": "push"}, payload)
        except (PayloadInvalid, UsageProblem):
            continue
        for arrival in arrivals:
            parse_delivery_uri(arrival.delivery)


# Buckets and memory.


def test_a_bucket_gives_a_minutes_tokens_at_once_and_then_as_they_come() -> None:
    now = [0.0]
    buckets = TokenBuckets(6, lambda: now[0])
    assert [buckets.take("a") for _ in range(8)] == [True] * 6 + [False] * 2
    assert buckets.take("b")
    now[0] = 10.5
    assert [buckets.take("a") for _ in range(2)] == [True, False]


def test_buckets_and_memory_stay_bounded_and_forget() -> None:
    now = [0.0]
    buckets = TokenBuckets(6, lambda: now[0])
    seen: AnswerCache[int] = AnswerCache(lambda: now[0])
    for number in range(30_000):
        buckets.take(str(number))
        seen.keep(str(number).encode(), number)
    assert len(buckets._tokens) == 10_000
    assert len(seen._answers) == 20_000
    assert (seen.find(b"29999"), seen.find(b"0")) == (29_999, None)
    now[0] = 25 * 3600
    assert seen.find(b"29999") is None


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"), ("x", "?"),
    ],
)  # fmt: skip
def test_an_ipv6_network_counts_as_one_sender(address: str, group: str) -> None:
    assert address_group(address) == group


def test_the_hmac_here_is_the_one_that_senders_make() -> None:
    body = json.dumps(github_push()).encode()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"x-hub-signature-256": f"sha256={signature}"}
    assert is_authentic(SourceWithSecret(GITHUB, SECRET), headers, body, 0)
