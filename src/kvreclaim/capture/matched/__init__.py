"""Matched quality: the ratio at which a policy does as much harm as another, and the ledger there."""
