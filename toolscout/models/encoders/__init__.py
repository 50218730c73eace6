"""Sentence encoders: the ONNX graph that is served, its export, and its form that learns."""
