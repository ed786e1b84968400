"""The programs that are compared: each trains the same workload in its own way. They know nothing of one another."""
