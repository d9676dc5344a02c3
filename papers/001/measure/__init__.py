"""What the tables of paper 001 measure: vertical federations, what was recovered of them, and cells of tables."""
