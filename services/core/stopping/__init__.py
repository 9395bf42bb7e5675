"""When to stop a nearest-neighbour search over an inverted file: rules, and their replay over recorded
searches."""
