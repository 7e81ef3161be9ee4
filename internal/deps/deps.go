//go:build deps

// Package deps pins modules while the rooms that use them are being built.
package deps

import (
	_ "github.com/cloudflare/circl/sign/mldsa/mldsa65"
	_ "github.com/distribution/reference"
	_ "github.com/docker/docker/client"
	_ "github.com/docker/docker/pkg/jsonmessage"
	_ "github.com/docker/docker/pkg/stdcopy"
	_ "github.com/docker/go-connections/nat"
	_ "github.com/google/go-containerregistry/pkg/registry"
	_ "github.com/google/go-containerregistry/pkg/v1/mutate"
	_ "github.com/google/go-containerregistry/pkg/v1/remote"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/olekukonko/tablewriter"
	_ "github.com/pelletier/go-toml/v2"
	_ "github.com/pressly/goose/v3"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/skeema/knownhosts"
	_ "github.com/urfave/cli/v2"
	_ "golang.org/x/crypto/sha3"
	_ "golang.org/x/crypto/ssh/agent"
	_ "golang.org/x/crypto/ssh/knownhosts"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.org/x/time/rate"
	_ "modernc.org/sqlite"
)
