"""Arms, beliefs and information states, and a catalogue of common models."""
