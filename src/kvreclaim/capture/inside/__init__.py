"""A model from inside: where its attention layers are, their queries, and what presses need around them."""
