"""Default values and lowest values of the spool's settings, for Settings, the spool and `drumline run`."""

#: Folder of all spools of a host.
ROOT = "/dev/shm/drumline"
#: Folder of rings below it, hidden: what scans the spools passes it over.
RINGS = ".rings"
#: Most megabytes of one process. 4 MB hold several of the largest batches.
MAX_MB, LOWEST_MAX_MB = 256, 4
#: Age at which a segment is closed; s. The agent reads open ones too; a closed one can be archived and deleted.
SEGMENT_S = 30.0
