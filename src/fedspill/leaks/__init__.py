"""What can leak: one folder each, found by the registry."""
