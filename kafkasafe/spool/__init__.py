"""The spool on disk: lanes, segments, their recovery, and the records that the cluster rejected."""
