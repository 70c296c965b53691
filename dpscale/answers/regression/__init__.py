"""Regressions from the estimates of a release: linear, logistic and Poisson, with intervals that include the noise."""
