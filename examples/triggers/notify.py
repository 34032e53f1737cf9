"""Tell `handoff webhook` of a commit: Python alone, signed as Standard Webhooks has it.

HANDOFF_HOOK_SECRET=... python notify.py https://hooks.example.org/handoff \
        delivery=s3://models/ci/toy model=toy commit=$(git rev-parse HEAD)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid


def main(address: str, *pairs: str) -> int:
    """Send `name=value` pairs; print the answer, and return 0 where a run was posted."""
    body = json.dumps(dict(pair.split("=", 1) for pair in pairs)).encode()
    identifier, then = uuid.uuid4().hex, str(int(time.time()))
    secret = os.environ["HANDOFF_HOOK_SECRET"].encode()
    content = f"{identifier}.{then}.".encode() + body
    signature = base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()
    headers = {
        "Content-Type": "application/json", "webhook-id": identifier,
        "webhook-timestamp": then, "webhook-signature": f"v1,{signature}",
    }  # fmt: skip
    try:
        request = urllib.request.Request(address, body, headers)  # noqa: S310 - the caller's own
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            print(answer.read().decode())  # noqa: T201 - this is a program
            return 0
    except urllib.error.HTTPError as error:
        print(f"refused: {error.code} {error.read().decode()}", file=sys.stderr)  # noqa: T201
    except OSError as error:
        print(f"not told: {error}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
