"""The checkpoints of each sound strategy without contention: where a test may stop it."""

STEPS = {
    **dict.fromkeys(
        ["row_lock", "ordered_locks", "lock_table", "unique_row", "advisory_lock"],
        "waiting locked read decided written recorded committed",
    ),
    **dict.fromkeys(["version_cas", "conditional_update"], "read decided written recorded committed"),
    **dict.fromkeys(
        [
            "redis_lock",
            "zookeeper_lock",
            "etcd_lock",
            "redlock",
            "database_lock",
            "segmented_locks",
        ],
        "waiting locked read decided written recorded committed unlocked",
    ),
    "fenced_lock": "waiting locked fenced read decided written recorded committed unlocked",
    **dict.fromkeys(
        ["local_lock", "redis_spin_lock"], "locked read decided written recorded committed unlocked"
    ),
    **dict.fromkeys(["redis_script", "redis_gate", "segmented"], "decided read written recorded committed"),
    "unit_rows": "read decided waiting locked read decided written recorded committed",  # alone
    "combined": "waiting locked read decided written recorded committed",
}
