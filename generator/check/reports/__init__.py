"""The reports of a check: the terminal, JUnit's XML, JSON, and one HTML page. Each is made from the Verdict alone."""
