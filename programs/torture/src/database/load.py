# Transfers money between accounts until it is told to stop, and says which transfers are committed.
#
# usage: load.py DATABASE JOURNAL-MODE SHARE NAME
import os
import random
import sqlite3
import sys

path, mode, share, name = sys.argv[1:]
ACCOUNTS = 64
# Isolation is ours to begin and to end: by default the module begins transactions as it sees fit.
database = sqlite3.connect(path, isolation_level=None, timeout=60)
database.execute(f"PRAGMA journal_mode={mode}")
# FULL leaves it to luck whether the removal of a rollback journal, which commits, survives.
database.execute("PRAGMA synchronous=EXTRA")
# Small, so that the log is taken back into the database often.
database.execute("PRAGMA wal_autocheckpoint=50")
database.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)")
database.execute(
    "CREATE TABLE IF NOT EXISTS transfer"
    " (id INTEGER PRIMARY KEY, source INTEGER, target INTEGER, amount INTEGER, note BLOB)"
)
if database.execute("SELECT count(*) FROM account").fetchone() == (0,):
    database.execute("BEGIN IMMEDIATE")
    database.executemany("INSERT INTO account VALUES (?, 1000)", [(id,) for id in range(ACCOUNTS)])
    database.execute("COMMIT")
number = database.execute("SELECT coalesce(max(id), 0) FROM transfer").fetchone()[0]
acknowledged = os.open(f"{share}/{name}.committed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while not os.path.exists(f"{share}/stop"):
    number += 1
    source, target = random.sample(range(ACCOUNTS), 2)
    amount = random.randint(1, 100)
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE account SET amount = amount - ? WHERE id = ?", (amount, source))
    database.execute("UPDATE account SET amount = amount + ? WHERE id = ?", (amount, target))
    note = random.randbytes(random.choice([16, 16, 16, 3000, 20000]))
    database.execute("INSERT INTO transfer VALUES (?, ?, ?, ?, ?)", (number, source, target, amount, note))
    database.execute("COMMIT")
    # In one write, so that a line is there whole or not at all.
    os.write(acknowledged, f"{number}\n".encode())
