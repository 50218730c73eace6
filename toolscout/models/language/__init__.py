"""Causal language models: reading checkpoints, and inference on ONNX Runtime or torch."""
