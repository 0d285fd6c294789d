"""Tool calls in the answers of models: one module per way of writing them, and the choice between them."""
