package simnode

import "context"

func run(ctx context.Context, cfg Config) int {
	_ = parseEnv(environ(cfg.Env))
	select {
	case <-ctx.Done():
		return 137
	case <-cfg.Stop:
		return 0
	}
}
