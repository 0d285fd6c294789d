"""Public kit for drafter and model authors: tiny models, scripted drafters, the plain reference loop, conformance."""
