"""What a server must not forget."""
