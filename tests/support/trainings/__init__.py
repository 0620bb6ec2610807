"""Trainings of many kinds, run on simulated GPUs and written as PyTorch's profiler writes them."""
