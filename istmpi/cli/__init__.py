"""The command line: a skin over the library; each command parses, calls the library and prints."""
