"""How Sphinx builds the site: `make docs`, which makes every warning an error.

The source is the repository's root, so that links between pages, READMEs and other files are the
same here and in a repository's browser. Nothing is fetched from elsewhere, neither here nor by a
reader.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(_ROOT))

project = "Handoff"
author = "Handoff's maintainers"
root_doc = "docs/index"
include_patterns = [
    "SECURITY.md",
    "docs/**",
    "infra/runner/README.md",
    "infra/containers/README.md",
    "tests/artifacts/release/tampering.md",
    "tests/studies/benchmarks/README.md",
    "tests/studies/benchmarks/tables.md",
    "tests/studies/corpus/README.md",
    "tests/studies/faults/README.md",
    "tests/studies/outages/README.md",
]
exclude_patterns = [".*", "site", "build", "**/node_modules"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]

# Headings get the anchors that a repository's browser gives them.
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # a table of measurements begins with its second level
nitpicky = True
nitpick_ignore_regex = [("py:.*", r".*")]  # types of torch and Python are named, not linked

default_role = "code"  # docstrings are written with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88

html_theme = "furo"
html_title = "Handoff"
html_copy_source = False
html_show_copyright = False
html_additional_pages = {"index": "entry.html"}
templates_path = ["templates"]
copybutton_exclude = ".linenos, .gp, .go"
