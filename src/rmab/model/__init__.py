"""What an arm is, what is believed of it, and models people know."""
