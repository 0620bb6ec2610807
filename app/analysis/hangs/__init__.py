"""Who a job that stands still is waiting for: recordings of its ranks, and the verdict on them."""
