"""Tables for print: non-negative whole numbers that add up, with flags, codebook and readme. Free post-processing."""
