"""The mathematics of passive membership: what was sent, held against the records that are asked about."""
