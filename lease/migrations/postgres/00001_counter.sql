-- +goose Up
-- One row a scope, never deleted: a counter that could start again would hand out a number that hosts have already seen.
CREATE TABLE qnetops_lease_counter (
  scope      text   PRIMARY KEY,
  generation bigint NOT NULL CHECK (generation >= 0),
  holder     text   NOT NULL DEFAULT '{}'
);

-- +goose Down
DROP TABLE qnetops_lease_counter;
