"""Published learners, one module each: reference, algorithm, options, maker and entry.

`rmab.policies.registry` reads the entries of all modules whenever a study's file is read, so a
module imports NumPy only: arrays bring their namespace (`rmab.linalg.array_namespace`), and
learners and planners that several policies share are imported inside the maker.

docs/learners.md has a section for each learner.
"""
