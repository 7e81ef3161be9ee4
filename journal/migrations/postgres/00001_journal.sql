-- +goose Up
CREATE TABLE qnetops_operation (
  seq         bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
  seq     bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
CREATE FUNCTION qnetops_entry_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'journal entries are only ever added'; END $$;
-- +goose StatementEnd
CREATE TRIGGER qnetops_entry_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON qnetops_entry
  FOR EACH STATEMENT EXECUTE FUNCTION qnetops_entry_refuse();

-- +goose Down
DROP TABLE qnetops_entry;
DROP FUNCTION qnetops_entry_refuse();
DROP TABLE qnetops_operation;
