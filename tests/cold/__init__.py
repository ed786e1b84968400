"""Every launcher starts a training in new processes, as its users do."""
