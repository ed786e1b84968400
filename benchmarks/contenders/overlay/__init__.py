"""What replaces the model.py and the data.py of a generated project, the files that are its owner's."""
