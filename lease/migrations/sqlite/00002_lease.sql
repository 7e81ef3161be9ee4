-- +goose Up
-- One row a scope, never deleted: a counter that could start again would hand out a number that hosts have already seen.
-- The file lock says who holds it; this remembers.
CREATE TABLE qnetops_lease (
  scope         text PRIMARY KEY,
  writer_id     text NOT NULL,
  writer_epoch  integer NOT NULL CHECK (writer_epoch >= 0),
  session_token text NOT NULL,
  generation    integer NOT NULL CHECK (generation >= 0),
  released      integer NOT NULL DEFAULT 0,
  updated_at    text NOT NULL,
  holder        text NOT NULL DEFAULT '{}'
);

CREATE TABLE qnetops_lease_log (
  id            integer PRIMARY KEY AUTOINCREMENT,
  at            text NOT NULL,
  scope         text NOT NULL,
  generation    integer NOT NULL,
  event         text NOT NULL,
  session_token text NOT NULL DEFAULT '',
  writer_id     text NOT NULL DEFAULT '',
  writer_epoch  integer NOT NULL DEFAULT 0,
  detail        text NOT NULL DEFAULT '{}'
);
CREATE INDEX qnetops_lease_log_scope ON qnetops_lease_log (scope, id);

-- The counter of earlier versions goes on here. The old table stays and is moved on by one: an older program that still runs
-- compares it before each effect, finds itself overtaken, and stops.
UPDATE qnetops_lease_counter SET generation = generation + 1;
INSERT INTO qnetops_lease (scope, writer_id, writer_epoch, session_token, generation, released, updated_at)
  SELECT scope, 'qnetops', 1, 'counter', generation, 1, strftime('%Y-%m-%dT%H:%M:%SZ', 'now') FROM qnetops_lease_counter;

-- +goose Down
DROP TABLE qnetops_lease_log;
DROP TABLE qnetops_lease;
