"""What AIM and its kin share: the setting, its schedule, what is believed, and the chain of states and decisions.

A run is a chain of states, each a function of released values; between two of them a `Selection` meets exact scores in
the exponential mechanism, what follows from it is a `Decision`, and its orders meet exact counts and noise elsewhere.
"""
