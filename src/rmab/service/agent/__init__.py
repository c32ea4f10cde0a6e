"""An agent of a served federation."""
