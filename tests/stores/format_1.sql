-- A store as the first released format wrote it. Never edit: it stands for the files people have.
PRAGMA application_id = 1414742868;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE aliases (tool_id TEXT, alias TEXT, PRIMARY KEY (tool_id, alias)) WITHOUT ROWID;
INSERT INTO "aliases" VALUES('mail/send','mail it');
CREATE TABLE catalogue (version INTEGER NOT NULL, document INTEGER NOT NULL);
INSERT INTO "catalogue" VALUES(5,1);
CREATE TABLE feedback (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            request TEXT NOT NULL,
            used TEXT NOT NULL,
            rejected TEXT NOT NULL,
            tenant TEXT NOT NULL,
            source TEXT NOT NULL,
            time TEXT NOT NULL
        );
INSERT INTO "feedback" VALUES(1,'send it','["mail/send"]','[]','','','2026-01-02T00:00:00+00:00');
CREATE TABLE grants (
            principal TEXT, kind TEXT CHECK (kind IN ('namespace', 'id')), value TEXT,
            PRIMARY KEY (principal, kind, value)
        ) WITHOUT ROWID;
INSERT INTO "grants" VALUES('ann','namespace','mail');
CREATE TABLE models (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, width INTEGER NOT NULL);
INSERT INTO "models" VALUES(1,'model-1',2);
CREATE TABLE removed (id TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "removed" VALUES('mail/old',4);
CREATE TABLE tools (
            row INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            source TEXT NOT NULL,
            content TEXT NOT NULL,
            digest TEXT NOT NULL,
            born INTEGER NOT NULL,
            version INTEGER NOT NULL,
            aliases TEXT NOT NULL,
            text TEXT NOT NULL,
            record TEXT NOT NULL
        );
INSERT INTO "tools" VALUES(1,'mail/send','mail','send','made','e87912de06ae2298014dfc43047e50f9','2fc32763c3e6312509897b9791af7814',1,5,'["post"]','Sends one message.
mail send','{"namespace":"mail","name":"send","description":"Sends one message.","inputSchema":{"type":"object","properties":{}},"aliases":["post"]}');
INSERT INTO "tools" VALUES(3,'mail/read_all','mail','read_all','made','a69fc3732ee0bc29357713ea785a1990','02f7159821f42c055038247f83bcecab',1,3,'[]','mail read all
Reads the whole inbox.
folder Which folder.
mail read_all','{"namespace":"mail","name":"read_all","description":"Reads the whole inbox.","inputSchema":{"type":"object","properties":{"folder":{"type":"string","description":"Which folder."}}}}');
CREATE TABLE vectors (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            model INTEGER NOT NULL REFERENCES models,
            digest TEXT NOT NULL,
            vector BLOB NOT NULL,
            UNIQUE (model, digest)
        );
INSERT INTO "vectors" VALUES(1,1,'0123',X'CD38663A');
CREATE INDEX tools_version ON tools (version, id);
CREATE INDEX tools_namespace ON tools (namespace, id);
CREATE INDEX tools_source ON tools (source);
CREATE INDEX removed_version ON removed (version, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('vectors',1);
INSERT INTO "sqlite_sequence" VALUES('feedback',1);
COMMIT;
