"""Pairwise maximum-entropy model of all measured pairs: it completes unmeasured pairs and generates rows.

Low-order tables estimate an unmeasured pair from its strongest chain alone. A model of all measured pairs uses all
chains together. It is learnt by sampling, so its size is not limited by a junction tree: `learn` sweeps over prototype
rows (`loops`) until the model reproduces the measured counts, and reads off the other pairs. The initial values are
rounded, so that machines whose floats differ in the last bits learn the same model.
"""
