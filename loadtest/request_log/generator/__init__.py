"""The generator of request logs: Bing-calibrated and semi-real, one concern a file."""
