"""What the tables of paper 004 measure: each function gives one line of JSON about one repetition."""
