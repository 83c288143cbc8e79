"""Private histograms and sums of FlyNN: scores, releases and curves over budgets."""
