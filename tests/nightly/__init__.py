"""The whole of what is promised, with what takes long: real launchers, faults, histories of updates."""
