"""What is expected of a process group, and the evidence that something is slower."""
