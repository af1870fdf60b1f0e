"""Sections of the page: one file a part, each with ``build(folder) -> Section`` from tables only."""
