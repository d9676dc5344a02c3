"""What a client can find out about a model it received, before it trains on it. Used by the guards."""
