"""A Flower app of the usual shape."""
