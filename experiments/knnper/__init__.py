"""The paper's experiments by name, and ours."""
