// Package sqldb opens the store that leases and journals live in: a SQLite file by default, Postgres by DSN.
//
// It hides the few differences (placeholders, locking, what an error means) and nothing more; the rooms above write plain
// SQL that both understand. Drivers are named by string and registered by the program's command and by tests, so that no
// library links a database. A store that cannot be trusted (no database, damaged, newer than this program) is refused
// before anything in it is changed.
package sqldb
