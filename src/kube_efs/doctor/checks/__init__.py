"""The checks: one module for each topic, each a pure function from facts to findings."""
