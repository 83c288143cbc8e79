"""Who says what to whom: messages, roles and the runtimes that carry them."""
