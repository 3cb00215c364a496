"""Locks and database transactions: commit before release, the fence, the commit probe."""
