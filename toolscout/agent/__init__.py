"""A small agent: it thinks, picks a tool, writes its arguments, calls it, reads the result, and finally answers.

`loop` has the Agent, `pickers` choose its next tool, `episode` records what it did.
"""
