-- Checks whether the server accepts writes, without writing. This script has no flags, so the server refuses it for the
-- same reasons as a script that writes: no free memory, a failed write to the disk, too few replicas, or because the
-- server is a replica.
return 1
