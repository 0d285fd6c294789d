"""The decoding engine: scheduler, prefill, group, round, delivery, and the facades users hold."""
