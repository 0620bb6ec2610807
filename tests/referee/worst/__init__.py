"""The judged figure: the worst of several draws on both physics, seeds drawn when it runs."""
