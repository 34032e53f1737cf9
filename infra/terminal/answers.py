"""What a server on this machine answers, and what it said last."""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request
from pathlib import Path


def get_status(address: str, login: str = "") -> int:
    """Return the HTTP status that an address answers with; 0 for no answer."""
    request = urllib.request.Request(address)  # noqa: S310 - an http address of a setting
    if login:
        token = base64.b64encode(login.encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    # No proxy is between a machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


def last_words(log: Path) -> str:
    """Return the last line of a log that names an error, else the last one; shortened."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if re.search(r"\w(Error|Exception)\b.*:", line)]
    return (errors or lines or [""])[-1].strip()[:300].rstrip(".")
