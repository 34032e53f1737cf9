"""Verify: a package goes in, the numeric blessing comes out, or every reason against it.

`plan`, `special` and `questions` say which inputs it is compared on, `reference` what eager and
float64 give there, `compare` and `elements` what may differ (`conditioning` measures how far
rounding moves each element), and `step` sums up.
"""
