# Looks at all that a database holds, and says how many transfers that are.
#
# usage: verify.py DATABASE LAST-ACKNOWLEDGED
import sqlite3
import sys

path, acknowledged = sys.argv[1], int(sys.argv[2])
database = sqlite3.connect(path, isolation_level=None)
verdict = database.execute("PRAGMA integrity_check").fetchall()
assert verdict == [("ok",)], f"{path}: integrity_check: {verdict}"
accounts = dict(database.execute("SELECT id, amount FROM account"))
assert len(accounts) == 64, f"{path}: {len(accounts)} accounts"
assert sum(accounts.values()) == 64 * 1000, f"{path}: the accounts sum up to {sum(accounts.values())}"
expected = {id: 1000 for id in accounts}
last = 0
for number, source, target, amount in database.execute("SELECT id, source, target, amount FROM transfer ORDER BY id"):
    assert number == last + 1, f"{path}: transfer {number} follows transfer {last}"
    last = number
    expected[source] -= amount
    expected[target] += amount
assert accounts == expected, f"{path}: the accounts are not what the transfers have made of them"
assert last >= acknowledged, f"{path}: transfer {acknowledged} was acknowledged, and the last one is {last}"
print(last)
