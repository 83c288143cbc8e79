"""What a federation learns of its rows, classes or numbers; needs the extra ``torch``."""
