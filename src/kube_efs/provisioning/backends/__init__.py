"""The kinds of volumes: how the engine plans, creates and removes each.

A backend decides nothing about other volumes: ``guards`` decides whether data may be removed, and reserves
directories. A backend creates and removes directories with ``workers``, and parses classes and claims with
``model``.
"""
