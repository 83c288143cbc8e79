"""Ways to split a data set over parties."""
