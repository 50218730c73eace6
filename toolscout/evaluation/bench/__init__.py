"""How fast: latency, throughput and memory."""
