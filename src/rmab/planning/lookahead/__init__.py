"""The tables by which K arms are chosen together, a few slots ahead."""
