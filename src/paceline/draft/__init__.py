"""Drafters: the provider contract, the registry of kinds, and one file per kind under ``kinds/``."""
