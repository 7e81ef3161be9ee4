-- +goose Up
CREATE TABLE qnetops_store (
  one integer PRIMARY KEY CHECK (one = 1),
  id  text NOT NULL
);

-- +goose Down
DROP TABLE qnetops_store;
