"""Tables and pictures drawn from run records alone."""
