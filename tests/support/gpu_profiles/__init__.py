"""Data-parallel training on GPUs, simulated kernel by kernel and written as PyTorch profiler files.

Written from the public trace format and the behavior of DDP, FSDP and NCCL alone, so that it shares
no assumption with the reader of such files, nor with `tests.support.trainings`.
"""
