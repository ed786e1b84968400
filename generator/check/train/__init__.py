"""Trains rendered projects on two Gloo processes each, and judges what they did."""
