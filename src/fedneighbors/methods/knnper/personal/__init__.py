"""What a client makes of the shared model for itself: mixtures, pools and heads; needs no torch."""
