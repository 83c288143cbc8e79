PRAGMA application_id = 1718512743;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE about (party TEXT NOT NULL, made TEXT NOT NULL) STRICT;
INSERT INTO "about" VALUES('north','2026-11-27T04:12:12.448+00:00');
CREATE TABLE answer (
    query TEXT PRIMARY KEY REFERENCES charge (query),
    sha256 TEXT NOT NULL, content BLOB NOT NULL
) STRICT;
INSERT INTO "answer" VALUES('first','e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',X'');
CREATE TABLE charge (
    query TEXT PRIMARY KEY,
    dataset TEXT NOT NULL, user TEXT NOT NULL,
    notion TEXT NOT NULL, first TEXT NOT NULL, second TEXT NOT NULL
) STRICT;
INSERT INTO "charge" VALUES('first','points','alice','approx','1/1','1/1000000');
CREATE TABLE entry (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('budget', 'reserved', 'released', 'voided')),
    dataset TEXT NOT NULL, user TEXT NOT NULL,
    notion TEXT NOT NULL, first TEXT NOT NULL, second TEXT NOT NULL,
    query TEXT NOT NULL, note TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
    chain TEXT NOT NULL
) STRICT;
INSERT INTO "entry" VALUES(1,'2026-11-27T04:12:12.479+00:00','budget','points','','approx','3/1','3/1000000','','','',0,'11a1394d9119c48c726f54e226bf77910c38a25ce32f4d25d24dbb69253af3f3');
INSERT INTO "entry" VALUES(2,'2026-11-27T04:12:12.491+00:00','reserved','points','alice','approx','1/1','1/1000000','first','','',0,'ca555e8bb0fd569e9c98eaa63e343394199b216ffc0529c1c7be34e0a6b81c0e');
INSERT INTO "entry" VALUES(3,'2026-11-27T04:12:12.494+00:00','released','points','alice','approx','1/1','1/1000000','first','','e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',0,'fa7c703c944dc09a7ef194b25644e644d36fe111eaaa0af49b0a07bba4747138');
CREATE INDEX entry_budget ON entry (dataset, user, number) WHERE kind = 'budget';
CREATE INDEX charge_cost ON charge (dataset, notion, first, second);
CREATE INDEX charge_cost_of_user ON charge (dataset, user, notion, first, second);
CREATE TRIGGER entry_stays BEFORE DELETE ON entry
    BEGIN SELECT RAISE(ABORT, 'an entry is never deleted'); END;
CREATE TRIGGER entry_as_written BEFORE UPDATE ON entry
    BEGIN SELECT RAISE(ABORT, 'an entry is never changed'); END;
CREATE TRIGGER charge_as_made BEFORE UPDATE ON charge
    BEGIN SELECT RAISE(ABORT, 'a charge is never changed'); END;
CREATE TRIGGER answer_stays BEFORE DELETE ON answer
    BEGIN SELECT RAISE(ABORT, 'an answer is never deleted'); END;
CREATE TRIGGER answer_as_stored BEFORE UPDATE ON answer
    BEGIN SELECT RAISE(ABORT, 'an answer is never changed'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('entry',3);
COMMIT;
