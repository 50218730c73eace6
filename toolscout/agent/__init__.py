"""An agent, small but whole: it thinks, picks a tool, fills in its arguments, calls it, observes, and stops.

loop has the Agent, pickers choose its tools, episode is what it did; replay measures it on recordings, judge asks a
language model whether it succeeded.
"""
