"""The site: the guides, and a preview that renders projects in the browser. Named so since Python has a module site."""
