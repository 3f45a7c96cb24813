"""The command line: reads what people type, calls the rooms before it, prints. Nobody imports it."""
