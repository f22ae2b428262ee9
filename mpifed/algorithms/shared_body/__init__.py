"""Methods whose clients share some layers of a network and keep the others."""
