"""Privacy of reports: noise and its accounting, masks, unmasking; no network, no database."""
