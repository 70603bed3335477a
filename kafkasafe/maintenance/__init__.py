"""An operator's work on a spool: examine, repair, resend, discard and prune it."""
