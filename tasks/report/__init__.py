"""The report of a release: its record as one page of HTML that needs nothing else.

Jinja2 writes it, because it escapes whatever a template is given; Matplotlib draws, because it
writes SVG whose text stays text. Both are needed by MLflow and torch anyway. Colours in pictures
are the page's own, so that they follow its light and its dark look.
"""
