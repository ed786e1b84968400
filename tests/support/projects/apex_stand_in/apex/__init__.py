"""Stands in for the package apex of NVIDIA/apex at tag 25.05, which needs a GPU to do anything."""
