"""Advice: which policy, on a user's model, text and runtime; measured, not looked up.

candidates ──measure──▶ losses prompt by prompt, reclaim in the runtime's table ──▶ Pareto set ──▶ one of it
"""
