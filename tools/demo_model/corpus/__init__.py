"""The synthetic corpus: one module a skill, each a pure function of a random generator and a split name."""
