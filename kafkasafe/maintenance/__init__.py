"""What an operator does to a spool: examine, repair, resend, discard and prune it."""
