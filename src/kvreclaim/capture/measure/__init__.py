"""The measurement of many policies on a real model, cell by cell: what each keeps, frees and costs.

    prompts × policies × ratios ──▶ cells: keep mask and quality, saved one by one
    cells ──▶ r* at matched quality ──▶ cells at r* ──▶ tables and block maps

`kvreclaim.capture.measure.run.measure` does it all; the other modules are its steps.
"""
