"""Target models: artifacts, weights, tokenizer, decoder graphs, binding. Knows nothing of rounds or requests."""
