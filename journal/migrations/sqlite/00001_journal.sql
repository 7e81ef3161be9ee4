-- +goose Up
CREATE TABLE qnetops_operation (
  seq         integer PRIMARY KEY AUTOINCREMENT,
  id          text    NOT NULL UNIQUE,
  kind        text    NOT NULL,
  fleet       text    NOT NULL,
  operator    text    NOT NULL,
  state       text    NOT NULL CHECK (state IN ('running', 'stopped', 'in_doubt', 'done', 'aborted')),
  epoch       bigint  NOT NULL,
  plan        text    NOT NULL,
  plan_digest text    NOT NULL,
  waivers     text    NOT NULL,
  data        text    NOT NULL,
  summary     text    NOT NULL DEFAULT '',
  started_at  text    NOT NULL,
  finished_at text
);
-- Two processes that begin at once meet here: one row is refused, whatever both have read before.
CREATE UNIQUE INDEX qnetops_operation_unfinished ON qnetops_operation (fleet) WHERE state IN ('running', 'stopped', 'in_doubt');

CREATE TABLE qnetops_entry (
  seq     integer PRIMARY KEY AUTOINCREMENT,
  op      text    NOT NULL REFERENCES qnetops_operation (id),
  at      text    NOT NULL,
  epoch   bigint  NOT NULL,
  what    text    NOT NULL CHECK (what IN ('begin', 'resume', 'intent', 'outcome', 'settle', 'note', 'finish')),
  step    text    NOT NULL DEFAULT '',
  attempt integer NOT NULL DEFAULT 0,
  state   text    NOT NULL DEFAULT '',
  looks   integer NOT NULL DEFAULT 0,
  title   text    NOT NULL DEFAULT '',
  error   text    NOT NULL DEFAULT '',
  data    text    NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX qnetops_entry_once ON qnetops_entry (op, step, attempt, what) WHERE what IN ('intent', 'outcome');
CREATE INDEX qnetops_entry_step ON qnetops_entry (op, step, seq);

-- +goose StatementBegin
CREATE TRIGGER qnetops_entry_no_update BEFORE UPDATE ON qnetops_entry
BEGIN SELECT RAISE(ABORT, 'journal entries are only ever added'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER qnetops_entry_no_delete BEFORE DELETE ON qnetops_entry
BEGIN SELECT RAISE(ABORT, 'journal entries are only ever added'); END;
-- +goose StatementEnd

-- +goose Down
DROP TABLE qnetops_entry;
DROP TABLE qnetops_operation;
