"""The engine of reconstruction from gradients: parts that every published attack of the kind is composed of."""
