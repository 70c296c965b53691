"""Shared parts of the AIM mechanisms: problem, schedule, estimators, and the chain of states and decisions.

A run is a chain of states, each a function of released values. Between two states the exponential mechanism applies
exact scores to an `AimSelection`; the result is an `AimDecision`, whose requests are measured elsewhere.
"""
