"""The scorer: its encoder, its calibration, and the bundle that carries both."""
