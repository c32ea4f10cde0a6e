"""The figures of the paper and of this project, with the claims that are judged."""
