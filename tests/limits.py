"""How long a test waits for what ends by itself."""

from __future__ import annotations

# A slow machine with other work takes ten times as long as a fast one alone. This only reveals
# what hangs, and ends before the test itself is ended.
LIMIT_S = 900.0
