"""Monte Carlo over trials: one array program for CPU and GPU."""
