"""The commands; only here is anything parsed or printed."""
