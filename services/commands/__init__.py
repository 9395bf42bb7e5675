"""The sub-commands of `frugalads`, one module each."""
