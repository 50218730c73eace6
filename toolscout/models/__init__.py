"""Parts that learn or were learnt, and know nothing of stores or retrievers."""
