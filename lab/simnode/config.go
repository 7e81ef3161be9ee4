package simnode

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/sha3"
)

// Names of the lab's own environment variables. They are set by lab images,
// next to the node's real variables (facts 5.1).
const (
	// EnvBlock is the block time, e.g. "20ms"; the default is 1s.
	EnvBlock = "QNETOPS_LAB_BLOCK"
	// EnvGenesis is the unix time in nanoseconds at which the live chain starts.
	EnvGenesis = "QNETOPS_LAB_GENESIS"
	// EnvHistory is the number of blocks of pre-made history (default 0).
	EnvHistory = "QNETOPS_LAB_HISTORY"
	// EnvSupers lists, comma separated, the ids of the super nodes that are
	// members in the pre-made history (see [SuperID]). Without it the
	// transport's peers at start count. It must be equal on all nodes.
	EnvSupers = "QNETOPS_LAB_SUPERS"
	// EnvGenesisCount is the number of genesis members, 1 to 5 (default 5).
	EnvGenesisCount = "QNETOPS_LAB_GENESIS_COUNT"
	// EnvObserver=1 keeps a super node from registering: it follows the chain
	// and is never a member.
	EnvObserver = "QNETOPS_LAB_OBSERVER"
	// EnvBehaviour is one of [Behaviours]; empty is a good node.
	EnvBehaviour = "QNETOPS_LAB_BEHAVIOUR"
	// EnvLieBuild is the build id the liar reports.
	EnvLieBuild = "QNETOPS_LAB_LIE_BUILD"
	// EnvManifest is the restart manifest and pin of the image's release, in the
	// JSON form of a manifest file (see [Manifest]): a real image has them
	// compiled in.
	EnvManifest = "QNETOPS_LAB_MANIFEST"
	// EnvPeers lists the peers of the TCP transport: "id@host:port,…".
	EnvPeers = "QNETOPS_LAB_PEERS"
	// EnvRAM is the RAM in MB that the preflight sees (default 8000).
	EnvRAM = "QNETOPS_LAB_RAM_MB"
)

// Config is what one node process is started with.
type Config struct {
	// Env holds KEY=VALUE pairs; of two equal keys the last one counts.
	Env []string
	// DataDir is the directory that survives restarts. Empty: QNET_DATA_DIR,
	// and when that is empty too, nothing is stored.
	DataDir string
	// Stdout and Stderr receive the log. Nil discards.
	Stdout, Stderr io.Writer
	// Listen binds the API and metrics ports ("tcp", "0.0.0.0:8001"). Nil is
	// net.Listen. A caller whose connections have no IP address (net.Pipe) is
	// taken for the bridge gateway: internal, but not exempt from rate limits.
	Listen func(network, addr string) (net.Listener, error)
	// Net is the peer network. Nil: TCP from [EnvPeers].
	Net Transport
	// Stop is closed for SIGTERM. Cancelling the context of Run is SIGKILL.
	Stop <-chan struct{}
	// Faults can be changed while the node runs. Nil: the node reads the file
	// "lab-faults" in its data directory (lines "kind" or "kind=arg").
	Faults *Faults
	// OnViolation is told of broken lab rules. Nil: only logged.
	OnViolation func(Violation)
	// Signer makes the signatures of served certificates. Nil: one of this
	// node's own; nodes in one process do better to share one.
	Signer *Signer
	// Seed of everything that is random in this node.
	Seed int64
}

// Violation is something that must never happen on a host, such as two nodes
// on one data directory.
type Violation struct {
	NodeID, Kind, Detail string
	At                   time.Time
}

// Behaviours are the image-level behaviours of [EnvBehaviour].
func Behaviours() []string {
	return []string{"", "crash", "gap", "oom", "liar", "mute", "slow"}
}

// GenesisID is the id of genesis member n (1 to 5).
func GenesisID(n int) string { return fmt.Sprintf("genesis_node_%03d", n) }

// SuperID is the id of the super node that holds a wallet seed: super_node_
// and the first 8 hex digits of the seed's SHA3-256.
func SuperID(seed string) string {
	sum := sha3.Sum256([]byte(seed))
	return "super_node_" + hex.EncodeToString(sum[:4])
}

// NodeID is the id a node started with this environment will have: a valid
// QNET_BOOTSTRAP_ID makes a genesis node, an invalid one is silently ignored.
func NodeID(env []string) string {
	e := environ(env)
	if n, ok := e.bootstrap(); ok {
		return GenesisID(n)
	}
	return SuperID(e.get("QNET_WALLET_SEED"))
}

// environ is an environment as Docker hands it over.
type environ []string

func (e environ) lookup(key string) (string, bool) {
	for _, kv := range slices.Backward(e) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v, true
		}
	}
	return "", false
}

func (e environ) get(key string) string { v, _ := e.lookup(key); return v }

// number reads an unsigned number; an unparsable value counts as unset, as in
// the node.
func (e environ) number(key string) (uint64, bool) {
	v, ok := e.lookup(key)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(v, 10, 64)
	return n, err == nil
}

func (e environ) numberOr(key string, def uint64) uint64 {
	if n, ok := e.number(key); ok {
		return n
	}
	return def
}

func (e environ) truthy(key string) bool {
	v := e.get(key)
	return v == "1" || strings.EqualFold(v, "true")
}

func (e environ) bootstrap() (int, bool) {
	switch v := e.get("QNET_BOOTSTRAP_ID"); v {
	case "001", "002", "003", "004", "005":
		return int(v[2] - '0'), true
	}
	return 0, false
}

// settings is the parsed environment.
type settings struct {
	id            string
	genesis       bool // this node is a genesis node
	block         time.Duration
	genesisNanos  int64
	history       uint64
	genesisCount  int
	supers        []string
	observer      bool
	behaviour     string
	lieBuild      string
	build         string
	logLevel      int
	apiPort       int
	p2pPort       int
	haltHeight    uint64
	hasHalt       bool
	rateLimit     int
	whitelist     map[string]bool
	apiKeys       []string
	adminSecret   string
	ramMB         uint64
	nodeStartSecs int64
	release       Manifest
}

// defaultGenesis is the clock's start in a synctest bubble, so that a lab that
// names no genesis still has one in the past.
const defaultGenesis = 946684800 * int64(time.Second)

func parseEnv(env environ) settings {
	s := settings{id: NodeID(env), block: time.Second, genesisNanos: defaultGenesis, genesisCount: 5,
		history: env.numberOr(EnvHistory, 0), observer: env.truthy(EnvObserver), behaviour: env.get(EnvBehaviour),
		lieBuild: env.get(EnvLieBuild), build: env.get("QNET_BUILD_ID"), ramMB: env.numberOr(EnvRAM, 8000),
		adminSecret: env.get("QNET_ADMIN_SECRET")}
	_, s.genesis = env.bootstrap()
	if d, err := time.ParseDuration(env.get(EnvBlock)); err == nil && d > 0 {
		s.block = d
	}
	if n, ok := env.number(EnvGenesis); ok {
		s.genesisNanos = int64(n)
	}
	if n, ok := env.number(EnvGenesisCount); ok && n >= 1 && n <= 5 {
		s.genesisCount = int(n)
	}
	for id := range strings.SplitSeq(env.get(EnvSupers), ",") {
		if id != "" {
			s.supers = append(s.supers, id)
		}
	}
	if s.build == "" {
		s.build = "v1.0.0-unstamped"
	}
	s.haltHeight, s.hasHalt = env.number("QNET_HALT_HEIGHT")
	s.logLevel = int(min(env.numberOr("QNET_LOG_LEVEL", 3), 5))
	s.apiPort = int(env.numberOr("QNET_API_PORT", 8001))
	s.p2pPort = int(env.numberOr("QNET_P2P_PORT", 9876))
	s.nodeStartSecs = int64(env.numberOr("QNET_NODE_START_TIME", 0))
	s.access(env)
	return s
}

// access reads who may call how often.
func (s *settings) access(env environ) {
	s.rateLimit = 100
	if n, ok := env.number("QNET_API_RATE_LIMIT"); ok && n >= 1 && n <= 10000 {
		s.rateLimit = int(n)
	}
	s.whitelist = map[string]bool{}
	for ip := range strings.SplitSeq(env.get("QNET_WHITELIST_IPS"), ",") {
		if ip = strings.TrimSpace(ip); ip != "" {
			s.whitelist[ip] = true
		}
	}
	for _, name := range []string{"QNET_API_KEY_EXPLORER", "QNET_API_KEY_ADMIN"} {
		if key := env.get(name); len(key) >= 16 {
			s.apiKeys = append(s.apiKeys, key)
		}
	}
}

// scale turns seconds of the real chain into this lab's time.
func (s *settings) scale(seconds float64) time.Duration {
	return time.Duration(seconds * float64(s.block))
}

// Run is one node process: it returns its exit code. Closing cfg.Stop is
// SIGTERM; cancelling ctx is SIGKILL (137). When Run returns, its listeners
// are closed and none of its goroutines is left.
func Run(ctx context.Context, cfg Config) int {
	return run(ctx, cfg)
}
