"""The checks: one module for each topic, each a pure function from facts to findings.

A check asks nobody: what it needs to know is a fact, which ``gathering`` reads.
"""
