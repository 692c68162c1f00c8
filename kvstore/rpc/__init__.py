"""Everything that speaks gRPC on the server's side."""
