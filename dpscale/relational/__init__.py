"""Links between two tables: noisy sums, the estimated link distribution, and links between synthetic rows.

Every link has the attributes of its two rows. Three sums over links are measured once: features of the one side, of the
other, and their products. `features` are centred one-hots as integers; `budget_shares` splits the budget between the
three sums without data. The rest is post-processing: `link_estimation` shrinks towards random links, `fit` estimates a
distribution over pairs of profiles, `rounding` yields integer numbers of links, `degrees` and `assignment` distribute
them to rows. The method relies on the observation that the largest error of random links is in the number of links of
each kind of row. Computations are over pairs of profiles, never over pairs of rows.

The method extends relational synthesis by Alim et al., whose algorithm is in `published`.
"""
