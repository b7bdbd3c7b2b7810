-- Writes nothing. Because this script has no flags, the server refuses it for the same reasons as a script that writes:
-- no free memory, a failed write to the disk, too few replicas, or a server that is a replica.
return 1
