"""Networks whose inner representation a memory can be built on; they need the extra ``torch``."""
