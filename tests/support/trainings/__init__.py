"""Trainings of many kinds on simulated GPUs, written in the format of PyTorch's profiler."""
