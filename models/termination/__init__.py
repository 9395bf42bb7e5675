"""Training of the stop rules: labels, recorded searches, the gain model, calibration."""
