"""One model of all measured pairs: what pairs that were not measured are, and what rows are drawn from.

Low-order tables know nothing of a pair that was not measured but its strongest chain. A pairwise maximum-entropy model
of all pairs that were knows all chains at once. It is learnt by sampling, so no junction tree bounds it: `learn` sweeps
prototype rows (`sweeping`, `loops`) until the model gives the measured counts, and reads off the others. What it starts
from is rounded, so that machines whose floats differ in their last bits learn the same.
"""
