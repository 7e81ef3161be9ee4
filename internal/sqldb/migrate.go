package sqldb

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var storeFiles embed.FS

var storeSchema = sub(storeFiles, "migrations")

func sub(f embed.FS, dir string) fs.FS {
	s, err := fs.Sub(f, dir)
	if err != nil {
		panic(err) // the folder is part of the binary; only a misspelt constant gets here
	}
	return s
}

// migrateTries is how often a migration is tried when another process migrates the same store at the same moment: the loser
// fails once on what the winner has made, and finds it done at the next look.
const migrateTries = 5

// Migrate brings the tables of one room up to date with the *.sql files (goose format) at the top of fsys; table holds that
// room's version. A store with a newer version is refused (*NewerSchemaError) and left alone.
func (d *DB) Migrate(ctx context.Context, fsys fs.FS, table string) error {
	p, err := goose.NewProvider(d.gooseDialect(), d.DB, fsys,
		goose.WithTableName(table), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("reading the migrations of %s: %w", table, err)
	}
	for try := 1; ; try++ {
		err = d.migrateOnce(ctx, p, table)
		var newer *NewerSchemaError
		if err == nil || errors.As(err, &newer) || try == migrateTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(try) * 50 * time.Millisecond):
		}
	}
}

func (d *DB) migrateOnce(ctx context.Context, p *goose.Provider, table string) error {
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return d.refused("reading its schema version", err)
	}
	switch {
	case current == target:
		return nil
	case current > target:
		return &NewerSchemaError{Where: d.where, Table: table, Found: current, Supports: target}
	}
	if _, err := p.Up(ctx); err != nil {
		return d.refused("bringing its tables up to date", err)
	}
	return nil
}

func (d *DB) gooseDialect() goose.Dialect {
	if d.Dialect == Postgres {
		return goose.DialectPostgres
	}
	return goose.DialectSQLite3
}
