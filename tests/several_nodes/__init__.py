"""Several data servers, in threads and processes, joined by gRPC."""
