"""The OpenAI-compatible server: requests over HTTP to the engine and back. Needs the extra ``server``."""
