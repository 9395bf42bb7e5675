"""The ad catalogue: its schema, import from users' files, and the bundle that services read."""
