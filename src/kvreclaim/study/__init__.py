"""The published study, reproduced: one experiment a file, tidy rows out, a verdict on every printed figure.

The study is a blog post with an interactive page, "Logical KV Savings Are Not Physical Memory Savings". Its
script is not available: parameters that the texts leave open were found by search against the printed
figures, so agreement in those is calibration, not validation.

To add an experiment, write its file with ``run(seeds) -> list[Row]`` and name it in `reproduce.EXPERIMENTS`.
"""
