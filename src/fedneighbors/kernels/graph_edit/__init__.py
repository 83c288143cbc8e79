"""Edit distance of labelled graphs."""
