"""Layer 0: errors, records, schemas, provenance and logging; imports nothing of the project."""
