"""Records, configuration and errors that every room shares. Imports no other room and, at run time, no torch."""
