package lease

// The statements of a lease on Postgres. All decisions about time are made on the clock of the process that decides; the
// database's own clock only says whether the TTL is over.

const sqlObserve = `
SELECT writer_id, writer_epoch, session_token, generation, renewals, released,
       lease_expires_at <= clock_timestamp(), extract(epoch FROM lease_expires_at - clock_timestamp())::float8, updated_at, holder::text
  FROM qnetops_lease WHERE scope = $1::text`

// A claim is one compare-and-swap. Where its condition is false it takes no lock and cannot disturb the holder.
const sqlInsert = `
WITH c AS (
  INSERT INTO qnetops_lease (scope, writer_id, writer_epoch, session_token, generation, lease_expires_at, holder)
  VALUES ($1::text, $2::text, $3::bigint, $4::text, 1, clock_timestamp() + make_interval(secs => $5::float8), $6::text::jsonb)
  ON CONFLICT (scope) DO NOTHING RETURNING generation, session_token),
l AS (
  INSERT INTO qnetops_lease_log (scope, generation, event, session_token, writer_id, writer_epoch, detail)
  SELECT $1, c.generation, 'acquired', c.session_token, $2, $3, $6::text::jsonb || jsonb_build_object('how', $7::text) FROM c)
SELECT generation FROM c`

const sqlClaim = `
WITH c AS (
  UPDATE qnetops_lease SET writer_id = $2::text, writer_epoch = $3::bigint, session_token = $4::text, generation = generation + 1,
         renewals = renewals + 1, released = false, holder = $6::text::jsonb, updated_at = clock_timestamp(),
         lease_expires_at = clock_timestamp() + make_interval(secs => $5::float8)
   WHERE scope = $1::text AND session_token = $8::text AND generation = $9::bigint AND renewals = $10::bigint
     AND (NOT $11::boolean OR released OR lease_expires_at <= clock_timestamp())
  RETURNING generation),
l AS (
  INSERT INTO qnetops_lease_log (scope, generation, event, session_token, writer_id, writer_epoch, detail)
  SELECT $1, c.generation, 'acquired', $4, $2, $3, $6::text::jsonb || jsonb_build_object('how', $7::text, 'from', $8::text) FROM c)
SELECT generation FROM c`

// The proof, and the renewal where the row is free. It never waits for the row: a holder must not die of its own long write.
const sqlProve = `
WITH f AS (
  SELECT scope FROM qnetops_lease
   WHERE scope = $1::text AND writer_id = $2::text AND writer_epoch = $3::bigint AND session_token = $4::text
     AND generation = $8::bigint AND NOT released FOR NO KEY UPDATE SKIP LOCKED),
r AS (
  UPDATE qnetops_lease l SET renewals = l.renewals + 1, updated_at = clock_timestamp(),
         lease_expires_at = clock_timestamp() + make_interval(secs => $5::float8)
    FROM f WHERE l.scope = f.scope RETURNING 1)
SELECT pg_backend_pid(),
       EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
                AND ((classid::bigint << 32) | objid::bigint) = $6::bigint),
       (SELECT count(*) FROM r),
       COALESCE(l.session_token = $4 AND l.generation = $8 AND NOT l.released, false),
       COALESCE(l.lease_expires_at <= clock_timestamp(), true),
       COALESCE(l.lease_expires_at <= clock_timestamp() + make_interval(secs => $9::float8), true),
       EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.application_name = $7::text AND a.backend_xid = l.xmax)
  FROM (SELECT 1) one LEFT JOIN qnetops_lease l ON l.scope = $1`

const sqlRaise = `
WITH c AS (
  UPDATE qnetops_lease SET generation = $5::bigint, renewals = renewals + 1, updated_at = clock_timestamp(),
         lease_expires_at = clock_timestamp() + make_interval(secs => $6::float8), holder = holder || jsonb_build_object('operation', $7::text)
   WHERE scope = $1::text AND session_token = $2::text AND generation = $3::bigint AND NOT released AND generation < $5
  RETURNING writer_id, writer_epoch),
l AS (
  INSERT INTO qnetops_lease_log (scope, generation, event, session_token, writer_id, writer_epoch, detail)
  SELECT $1, $5, 'raised', $2, c.writer_id, c.writer_epoch, jsonb_build_object('operation', $7::text, 'owner', $4::text) FROM c)
SELECT count(*) FROM c`

const sqlRelease = `
WITH c AS (
  UPDATE qnetops_lease SET released = true, lease_expires_at = clock_timestamp(), renewals = renewals + 1, updated_at = clock_timestamp()
   WHERE scope = $1::text AND session_token = $2::text AND generation = $3::bigint AND NOT released
  RETURNING writer_id, writer_epoch),
l AS (
  INSERT INTO qnetops_lease_log (scope, generation, event, session_token, writer_id, writer_epoch, detail)
  SELECT $1, $3, 'released', $2, c.writer_id, c.writer_epoch, jsonb_build_object('why', $4::text) FROM c)
SELECT count(*) FROM c`

const sqlRevoke = `
WITH c AS (
  UPDATE qnetops_lease SET session_token = $5::text, generation = generation + 1, released = true, renewals = renewals + 1,
         lease_expires_at = clock_timestamp(), updated_at = clock_timestamp()
   WHERE scope = $1::text AND session_token = $2::text AND generation = $3::bigint AND renewals >= $4::bigint
  RETURNING generation, writer_id, writer_epoch, holder),
l AS (
  INSERT INTO qnetops_lease_log (scope, generation, event, session_token, writer_id, writer_epoch, detail)
  SELECT $1, c.generation, 'revoked', $2, c.writer_id, c.writer_epoch,
         c.holder || jsonb_build_object('reason', $6::text, 'by', $7::text, 'revoked_generation', $3::bigint) FROM c)
SELECT generation FROM c`

// Who has the session lock of a key in this database.
const sqlGuards = `
SELECT l.pid, COALESCE(a.application_name, ''), COALESCE(a.client_addr::text, '')
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND ((l.classid::bigint << 32) | l.objid::bigint) = $1::bigint
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// The first and the last statement of a write of ours: the first proves the right and keeps the row until the commit, the
// last renews what the write has used up.
const sqlWriteBegin = `
UPDATE qnetops_lease SET renewals = renewals + 1, updated_at = clock_timestamp(),
       lease_expires_at = clock_timestamp() + make_interval(secs => $6::float8)
 WHERE scope = $1::text AND writer_id = $2::text AND writer_epoch = $3::bigint AND session_token = $4::text AND generation = $5::bigint AND NOT released`
