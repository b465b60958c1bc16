"""How agents are driven: one small contract and one file for each kind of agent.

`contract` is the contract, `registry.wrap` makes the wrapper that fits an agent. The standard library alone is
imported here; a framework is imported only by its own wrapper, when an agent of it is there.
"""
