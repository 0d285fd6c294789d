"""Adaptive depth: how many proposals each row should verify now, from evidence and measured costs (spec 11)."""
