"""What is taken where nobody says otherwise: by the options of a URL, by the command line and by Peace itself."""

WAIT_SECONDS = 60.0
"""How long a request waits for its first and each further turn at most, however alive the coordinator is."""

WIRE_CAPACITY = 2
"""Chunks that a wire takes in one timestep: two writers fill a client's wire, and a DataNode serves two well."""
