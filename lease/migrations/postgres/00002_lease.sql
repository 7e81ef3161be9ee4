-- +goose Up
-- One row a scope, never deleted. Times are for people; decisions use renewals and the clocks of the processes.
CREATE TABLE qnetops_lease (
  scope            text PRIMARY KEY,
  writer_id        text NOT NULL,
  writer_epoch     bigint NOT NULL CHECK (writer_epoch >= 0),
  session_token    text NOT NULL,
  generation       bigint NOT NULL CHECK (generation >= 0), -- rises with every change of owner: the fencing number
  renewals         bigint NOT NULL DEFAULT 0,               -- rises with every touch: what a claim compares
  released         boolean NOT NULL DEFAULT false,
  lease_expires_at timestamptz NOT NULL,
  updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  holder           jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE qnetops_lease_log (
  id            bigserial PRIMARY KEY,
  at            timestamptz NOT NULL DEFAULT clock_timestamp(),
  scope         text NOT NULL,
  generation    bigint NOT NULL,
  event         text NOT NULL,
  session_token text NOT NULL DEFAULT '',
  writer_id     text NOT NULL DEFAULT '',
  writer_epoch  bigint NOT NULL DEFAULT 0,
  detail        jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX qnetops_lease_log_scope ON qnetops_lease_log (scope, id);

-- The counter of earlier versions goes on here. The old table stays and is moved on by one: an older program that still runs
-- compares it before each effect, finds itself overtaken, and stops.
UPDATE qnetops_lease_counter SET generation = generation + 1;
INSERT INTO qnetops_lease (scope, writer_id, writer_epoch, session_token, generation, released, lease_expires_at)
  SELECT scope, 'qnetops', 1, 'counter', generation, true, clock_timestamp() FROM qnetops_lease_counter;

-- +goose Down
DROP TABLE qnetops_lease_log;
DROP TABLE qnetops_lease;
