"""One module per drafter kind. Each exports ``KIND``, a declaration that the default registry names lazily."""
