"""Rules by which agents choose K arms, one module each; `rule` says what a rule is."""
