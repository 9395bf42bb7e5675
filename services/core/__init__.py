"""Pure algorithms: no sockets, no files, no clocks of their own."""
