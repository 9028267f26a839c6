"""Several node servers, in threads and processes, joined by gRPC."""
