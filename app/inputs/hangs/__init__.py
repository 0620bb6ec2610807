"""Files that ranks of a job leave when it hangs."""
