"""Refresh policies: when a cached list is computed anew although it could be reused."""
