"""The judged figure: the worst of several draws on both physics, with new seeds in each run."""
