"""Results as figures and pages."""
