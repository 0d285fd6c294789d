"""Grammars that constrain what a request may generate. Knows no row, no round and no model."""
