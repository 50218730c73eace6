"""Causal language models: reading checkpoints, serving them with ONNX Runtime or torch."""
