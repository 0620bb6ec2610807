"""Models of what goes wrong: each makes another world of a healthy one."""
