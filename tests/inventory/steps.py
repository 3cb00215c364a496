"""How each sound strategy tells its checkpoints when there is nobody else: where a test may stop it."""

STEPS = {
    "row_lock": "waiting locked read decided written recorded committed",
    "version_cas": "read decided written recorded committed",
    "conditional_update": "read decided written recorded committed",
    "ordered_locks": "waiting locked read decided written recorded committed",
    "lock_table": "waiting locked read decided written recorded committed",
    "unique_row": "waiting locked read decided written recorded committed",
    "advisory_lock": "waiting locked read decided written recorded committed",
    "local_lock": "locked read decided written recorded committed unlocked",
    "redis_lock": "waiting locked read decided written recorded committed unlocked",
    "zookeeper_lock": "waiting locked read decided written recorded committed unlocked",
    "etcd_lock": "waiting locked read decided written recorded committed unlocked",
    "redlock": "waiting locked read decided written recorded committed unlocked",
    "database_lock": "waiting locked read decided written recorded committed unlocked",
    "fenced_lock": "waiting locked read decided written recorded committed unlocked",
    "redis_spin_lock": "locked read decided written recorded committed unlocked",
    "redis_script": "decided read written recorded committed",
    "redis_gate": "decided read written recorded committed",
    "segmented": "decided read written recorded committed",
    "segmented_rows": "read decided waiting locked read decided written recorded committed",  # alone
    "segmented_locks": "waiting locked read decided written recorded committed unlocked",
    "unit_rows": "read decided waiting locked read decided written committed recorded committed",
    "combined": "read decided committed",
    "async_reserve": "read decided written committed recorded committed",
}
