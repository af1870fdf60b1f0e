"""Results folders as static figures and as one self-contained page.

A section is built from a folder's tables alone (`sections`), its figures by chart functions (`charts`);
`registry` says which sections a folder gives.
"""

from kvreclaim.report.figures import write_figures
from kvreclaim.report.page import render_page

__all__ = ["render_page", "write_figures"]
