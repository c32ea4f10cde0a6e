"""Planning: indices and index tables, lookahead, exact values and bounds from dynamics.

    channel    closed forms of two-state channels
    index      Whittle and Gittins indices of any arm
    tables     index tables of known arms and of drawn dynamics
    lookahead  gains and terminal values for choosing K arms together
    joint      the joint chain: the optimum, the value of a policy, the Lagrangian bound

One arm with a subsidy for passivity is the problem behind all of them. Its solvers answer different
questions:

    channel.subsidy      the waits of one channel at one subsidy, to full precision
    index                the subsidies at which the best policy of an arm changes: its indices
    lookahead.channel    also the subsidy, from a list of waits, for many draws in compiled programs
    lookahead.tables     the same for other arms, by backward induction over the rows of a table
    joint.relaxation     the subsidy at which several arms share K plays, by a linear programme

The two of `lookahead` are approximate and cheap, as they run in every episode; tests compare them
with the others.
"""
