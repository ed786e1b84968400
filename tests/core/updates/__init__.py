"""An update of a project loses nothing."""
