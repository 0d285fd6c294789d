"""Device operations on tensors: products, attention, norms, rotary positions. Knows no model, row or request."""
