"""What FSx demands of every file system, whatever its type: backups and the maintenance window."""

from __future__ import annotations

import re

from .problems import Problem, nearest

MOST_BACKUP_DAYS = 90
"""AutomaticBackupRetentionDays, 0..90. Source: FSx API, CreateFileSystem (botocore shape)."""

_WEEKLY = re.compile(r"[1-7]:([01][0-9]|2[0-3]):[0-5][0-9]")
"""WeeklyMaintenanceStartTime, `d:HH:MM` in UTC, 1 is Monday. Source: FSx API, WeeklyTime."""


def check_backup_days(days: int, *, path: str) -> list[Problem]:
    """Refuse a retention outside 0..90 days (0: no automatic backups); `path` names the field."""
    if 0 <= days <= MOST_BACKUP_DAYS:
        return []
    (limit,) = nearest(days, (0, MOST_BACKUP_DAYS))
    allowed = f"0 (no automatic backups) to {MOST_BACKUP_DAYS} days"
    return [Problem(path, f"{days} days", allowed, f"set backup_days to {limit}")]


def check_maintenance(window: str | None, *, path: str) -> list[Problem]:
    """Refuse a weekly window that is not `d:HH:MM`; None leaves the choice to AWS."""
    if window is None or _WEEKLY.fullmatch(window):
        return []
    allowed = "d:HH:MM in UTC, where d is 1 (Monday) to 7 (Sunday)"
    return [Problem(path, repr(window), allowed, 'write it as "7:03:00" (Sunday, 03:00 UTC) or leave it out')]
