"""Training and building of the models that the services run."""
