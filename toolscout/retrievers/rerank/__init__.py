"""Reorders the first tools of another retriever's ranking by what a reranker says of them."""
