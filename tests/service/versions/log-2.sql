PRAGMA application_id = 0;
PRAGMA user_version = 0;
BEGIN TRANSACTION;
CREATE TABLE entry (number INTEGER PRIMARY KEY, content TEXT, chain TEXT);
INSERT INTO "entry" VALUES(1,'{"time": 1795752732.119, "query": "0123456789abcdef00", "user": "alice", "collection": "points", "kind": "search", "size": 3, "outcome": "", "n_objects": 0, "providers": [], "digest": ""}','cb09273a5e82f153f3fede0ca0640beb150b44ad333334f3cdce32ce1e9a2e30');
INSERT INTO "entry" VALUES(2,'{"time": 1795752732.119, "query": "0123456789abcdef01", "user": "alice", "collection": "points", "kind": "search", "size": 3, "outcome": "", "n_objects": 0, "providers": [], "digest": ""}','0d9174c7a02c8d2364a968431fae0a67ed6cef786a435570f1410dc41dc1f271');
CREATE TABLE usage (day INTEGER, collection TEXT, user TEXT, n_queries INTEGER,
    n_objects INTEGER, PRIMARY KEY (day, collection, user));
INSERT INTO "usage" VALUES(20784,'points','alice',2,0);
COMMIT;
