"""The served stack as containers, brought up from nothing, used, and taken down (`make stack-run`).

Files: `machine` (what it takes), `namespaces` (where everything runs, so that nothing is left),
`engine` (Docker's), `images` (base, stand-ins, ours), `stack` (compose, and Handoff before it),
`trial` (what is tried), `seen` (what was seen).
"""
