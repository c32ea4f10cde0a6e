"""HTTP floor below the server and the helper: listener, middleware, certificates, tokens."""
