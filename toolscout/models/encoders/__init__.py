"""Text encoders: inference on ONNX Runtime, export to ONNX, and the trainable encoder in torch."""
