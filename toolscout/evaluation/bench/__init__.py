"""Benchmarks: latency, throughput and memory."""
