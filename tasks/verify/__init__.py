"""Verify: a package goes in, the numeric verdict comes out, with every reason.

`inputs` says what it is compared on, `reference` what eager and float64 give there, `compare` and
`elements` what may differ (`conditioning` measures how far rounding moves each element), and `step`
sums up.
"""
