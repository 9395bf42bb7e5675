"""Sample data, query streams, load, reports and benches."""
