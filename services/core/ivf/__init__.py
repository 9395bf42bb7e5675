"""An inverted-file index searched by a compiled loop that a stop rule can end at every list."""
