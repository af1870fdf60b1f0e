"""Charts: one function a figure, from a table, a scale, a width and a theme to an Altair chart."""
