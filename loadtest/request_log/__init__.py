"""The request log: what was asked, which ads were listed for it, what they were worth, what was clicked."""
