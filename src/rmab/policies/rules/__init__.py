"""Rules by which agents choose K arms, one module each; `rule` has their base class."""
