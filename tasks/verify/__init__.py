"""Verify: a package goes in, the numeric verdict comes out, with every reason.

`plan`, `special` and `questions` say which inputs it is compared on, `reference` what eager and
float64 give there, `compare` and `elements` what may differ (`conditioning` measures how far
rounding moves each element), and `step` sums up.
"""
