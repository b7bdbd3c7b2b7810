-- Checks whether the server accepts writes, without writing. This script has no flags, so the server refuses it for the
-- same reasons as a script that writes. These are the reasons: the server has no free memory; its last write to the
-- disk failed; it has too few replicas; or it is a replica itself.
return 1
