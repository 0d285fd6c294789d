"""The command line. Reads flags, asks the engine, prints; decides nothing about decoding."""
