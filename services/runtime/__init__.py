"""What every server shares: configuration, bundles, health, deadlines, errors, admission, metrics, drain."""
