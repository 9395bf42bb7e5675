"""The whole pipeline as child processes of one command, on one machine."""
