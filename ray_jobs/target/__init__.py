"""Layer 2: the target model's servers: wire format, client, processes, the embedded server."""
