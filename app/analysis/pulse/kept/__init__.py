"""What is kept of a pulse: rows as blocks, and sums of minutes and hours."""
