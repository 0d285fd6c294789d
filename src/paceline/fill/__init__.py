"""Copied spans: what a request's text is expected to repeat, from a prediction or from itself. Token ids only."""
