"""Scores that a policy selects by: synthetic ones for the study."""
