"""Scenarios in which processes are killed, stopped or slow; they share one cluster."""
