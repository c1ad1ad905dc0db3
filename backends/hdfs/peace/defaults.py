"""What is taken where nobody says otherwise: by the options of a URL, by the command line and by Peace itself."""

WIRE_CAPACITY = 2
"""Chunks that a wire takes in one timestep: two writers fill a client's wire, and a DataNode serves two well."""
