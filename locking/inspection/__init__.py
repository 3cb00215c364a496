"""Who holds what: the held list, heartbeats, call sites, statistics, admin actions."""
