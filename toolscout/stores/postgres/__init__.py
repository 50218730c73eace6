"""The store in a PostgreSQL database with pgvector, which many servers may share."""
