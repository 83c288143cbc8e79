"""Edit distance of strings."""
