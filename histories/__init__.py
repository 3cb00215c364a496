"""Histories of the locks under partitions: several hosts, faults, one log, and a checker that isn't ours."""
