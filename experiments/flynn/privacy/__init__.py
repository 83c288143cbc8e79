"""Privacy study of FlyNN: releases, scores and curves over budgets."""
