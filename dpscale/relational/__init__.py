"""Links between two tables: what is measured of them, what is believed of it, and links between synthetic rows.

Every link has the attributes of its two rows. Three sums over links are measured once: features of the one side, of
the other, and their products; `features` are centred one-hots as whole numbers, `shares` says how the budget goes to
the three, without data. Then all is post-processing: `shrink` towards random links, `fit` a distribution over pairs of
profiles, `rounding` to whole numbers of links, `degrees` and `assign` to rows. Idea: most of what random links get
wrong is how many links rows of each kind have. No pair of rows is ever looked at; profiles are.

Alim et al., relational synthesis, is what this goes past: `published` has their loop.
"""
