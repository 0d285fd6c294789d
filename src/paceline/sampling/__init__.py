"""Pure functions of tensors: keyed noise, filters, draws, acceptance. Knows no model, no drafter and no row."""
