package host

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hostOps is the work of an agent on one host; it holds no state but the engine.
type hostOps struct {
	cfg  Config
	eng  *engine
	node *http.Transport
}

func newOps(cfg Config) *hostOps {
	return &hostOps{cfg: cfg, eng: newEngine(cfg.DialEngine), node: newNodeTransport(cfg)}
}

// facts reads the host. What cannot be read is an error or says so in its row.
func (h *hostOps) facts(ctx context.Context, req FactsRequest) (Facts, error) {
	f := Facts{Now: h.cfg.now().UTC(), Updaters: []string{}, TLSTerminators: []string{}, Siblings: []Sibling{}, Disks: []DiskFacts{}, Unsettled: []OpenTx{}}
	logs, err := h.cfg.allTx()
	if err != nil {
		return f, err
	}
	for _, l := range logs {
		if p := replay(l); p.unsettled() {
			f.Unsettled = append(f.Unsettled, OpenTx{Operation: l[0].Operation, Container: l[0].Container, Tx: p.tx})
		}
	}
	info, err := h.eng.info(ctx)
	if err != nil {
		return f, err
	}
	api, v := h.eng.facts()
	f.Engine = EngineFacts{Version: v.Version, APIVersion: "1." + strconv.Itoa(api), Root: info.DockerRootDir}
	rows, err := h.eng.list(ctx)
	if err != nil {
		return f, err
	}
	if req.Container != "" {
		if f.Container, err = h.containerFacts(ctx, req.Container); err != nil {
			return f, err
		}
		f.Held = f.Container != nil && !f.Container.Running() && heldSpec(logs, f.Container.ID) != nil
		if err := h.siblings(ctx, &f, req.Container, rows); err != nil {
			return f, err
		}
	}
	for _, r := range rows {
		if r.name() == req.Container || !stateRuns(r.State) {
			continue
		}
		switch {
		case looksLike(r, updaterWords):
			f.Updaters = append(f.Updaters, r.name())
		case looksLike(r, tlsWords):
			f.TLSTerminators = append(f.TLSTerminators, r.name())
		}
	}
	for _, p := range req.DataPaths {
		f.Disks = append(f.Disks, h.disk(p))
	}
	return f, nil
}

// Words by which other software is known in image or container names. They
// inform; nothing is refused on their ground alone.
var (
	updaterWords = []string{"watchtower", "ouroboros", "diun", "wud", "whats-up-docker", "shepherd", "tugtainer"}
	tlsWords     = []string{"caddy", "nginx", "traefik", "haproxy", "envoy", "-tls"}
)

func looksLike(r listed, words []string) bool {
	image := r.Image
	if i := strings.LastIndexByte(image, '/'); i >= 0 {
		image = image[i+1:]
	}
	for _, w := range words {
		if strings.Contains(strings.ToLower(image), w) || strings.Contains(strings.ToLower(r.name()), w) {
			return true
		}
	}
	return false
}

// siblings finds the other containers of the node: by name and by data directory.
func (h *hostOps) siblings(ctx context.Context, f *Facts, container string, rows []listed) error {
	if f.Container != nil && f.Container.DataDir.HostPath != "" {
		shared, err := h.sharers(ctx, f.Container.DataDir.HostPath)
		if err != nil {
			return err
		}
		f.Siblings = shared
	}
	for _, r := range rows {
		known := slices.ContainsFunc(f.Siblings, func(s Sibling) bool { return s.ID == r.ID })
		if strings.HasPrefix(r.name(), container+"-") && !known {
			f.Siblings = append(f.Siblings, Sibling{Name: r.name(), ID: r.ID, Image: r.Image, State: r.State})
		}
	}
	f.Siblings = slices.DeleteFunc(f.Siblings, func(s Sibling) bool { return f.Container != nil && s.ID == f.Container.ID })
	for i, s := range f.Siblings {
		_, o, err := h.eng.inspect(ctx, s.ID)
		if err != nil && !isCode(err, CodeNotFound) {
			return err
		}
		if o != nil {
			f.Siblings[i].RestartPolicy = policyFrom(o).Name
		}
	}
	return nil
}

func (h *hostOps) disk(p string) DiskFacts {
	if h.cfg.Facts == nil {
		return DiskFacts{Path: p, Error: "no source of disk facts"}
	}
	d, err := h.cfg.Facts.Disk(h.cfg.path(p))
	d.Path = p
	if err != nil {
		d.Error = err.Error()
	}
	return d
}

// containerFacts reads one container; nil when there is none of that name.
func (h *hostOps) containerFacts(ctx context.Context, ref string) (*ContainerFacts, error) {
	_, o, err := h.eng.inspect(ctx, ref)
	if isCode(err, CodeNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := factsOf(o)
	_, img, err := h.eng.image(ctx, f.ImageID)
	switch {
	case err == nil:
		f.ImageDigests = texts(img, "RepoDigests")
	case !isCode(err, CodeNotFound):
		return nil, err
	}
	f.LogBytes = h.logBytes(f.LogPath)
	return &f, nil
}

// factsOf takes out of an inspect what may leave the host.
func factsOf(o object) ContainerFacts {
	cfg, st := sub(o, "Config"), sub(o, "State")
	f := ContainerFacts{ID: str(o, "Id"), Name: strings.TrimPrefix(str(o, "Name"), "/"), ImageRef: str(cfg, "Image"), ImageID: str(o, "Image"),
		Created: timeOf(o, "Created"), State: str(st, "Status"), ExitCode: number(st, "ExitCode"), OOMKilled: st["OOMKilled"] == true,
		StartedAt: timeOf(st, "StartedAt"), FinishedAt: timeOf(st, "FinishedAt"), RestartCount: number(o, "RestartCount"),
		RestartPolicy: policyFrom(o).Name, RestartRetries: policyFrom(o).MaximumRetryCount, EnvNames: []string{}, DataDir: dataDirOf(o), StopTimeoutSeconds: number(cfg, "StopTimeout"),
		LogPath: str(o, "LogPath"), Compose: str(sub(cfg, "Labels"), "com.docker.compose.project")}
	env := envMap(texts(cfg, "Env"))
	for _, e := range parseEnv(texts(cfg, "Env")) {
		if !slices.Contains(f.EnvNames, e.name) {
			f.EnvNames = append(f.EnvNames, e.name)
		}
	}
	f.OneShot = oneShotOf(f.EnvNames)
	if e, ok := env["QNET_LOG_LEVEL"]; ok && !e.bare {
		f.LogLevel = publicLogLevel(e.value)
	}
	if e, ok := env[VarHaltHeight]; ok && !e.bare {
		f.HaltHeight = publicHeight(e.value)
	}
	return f
}

// logBytes is the size of a container's log with its rotated files; 0: unknown.
func (h *hostOps) logBytes(logPath string) int64 {
	if logPath == "" {
		return 0
	}
	names, err := filepath.Glob(h.cfg.path(logPath) + "*")
	if err != nil {
		return 0
	}
	var n int64
	for _, name := range names {
		if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
			n += st.Size()
		}
	}
	return n
}

// situation reads what is really there, beside the log.
func (h *hostOps) situation(ctx context.Context, req situationParams) (Situation, error) {
	var s Situation
	if !ValidContainerName(req.Container) || !ValidContainerName(req.Operation) {
		return s, errorf(CodeBadRequest, "", "container or operation is not a name")
	}
	var err error
	if s.Current, err = h.containerFacts(ctx, req.Container); err != nil {
		return s, err
	}
	if s.Entries, err = h.entries(req.Operation, req.Container); err != nil {
		return s, err
	}
	s.Unsettled = replay(s.Entries).unsettled()
	next, aside, failed := namesOf(s.Entries)
	for name, to := range map[string]**ContainerFacts{next: &s.Next, aside: &s.Aside, failed: &s.Failed} {
		if name == "" {
			continue
		}
		if *to, err = h.containerFacts(ctx, name); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (h *hostOps) entries(op, container string) ([]TxEntry, error) {
	e, _, err := readTx(h.cfg.txPath(op, container))
	if errors.Is(err, os.ErrNotExist) {
		return []TxEntry{}, nil
	}
	return e, err
}

// namesOf finds the temporary names of an operation in its log, the newest first.
func namesOf(entries []TxEntry) (next, aside, failed string) {
	for _, e := range entries {
		if e.Stage != nil {
			next = e.Stage.NextName
		}
		if e.Spec != nil {
			aside, failed = e.Spec.AsideName, e.Spec.FailedName
			if e.Spec.NextName != "" {
				next = e.Spec.NextName
			}
		}
	}
	return next, aside, failed
}

func (h *hostOps) txLog(op string) ([]TxEntry, error) {
	logs, err := h.cfg.allTx()
	if err != nil {
		return nil, err
	}
	out := []TxEntry{}
	for _, l := range logs {
		if l[0].Operation == op {
			out = append(out, l...)
		}
	}
	return out, nil
}

// secretName matches the names whose values never appear in a line that leaves the host.
var secretName = regexp.MustCompile(`(?i)SEED|SECRET|KEY|CODE|TOKEN|PASS|MNEMONIC|CRED|AUTH|BURN|PRIVATE`)

// plainWord matches values that tell nothing: numbers, booleans and log levels.
var plainWord = regexp.MustCompile(`(?i)^([+-]?[0-9]+(\.[0-9]+)?|true|false|yes|no|on|off|enabled|disabled|trace|debug|info|notice|warn|warning|error|fatal|critical)$`)

// secretsOf lists the values to blot out, the longest first: those of variables
// with a secret's name, and those of all others that could be one, for what a
// name says is not certain. The values of the image's own variables are public.
func secretsOf(inspect, image object) []string {
	public := envMap(texts(sub(image, "Config"), "Env"))
	var out []string
	for _, e := range parseEnv(texts(sub(inspect, "Config"), "Env")) {
		least := 4
		if !secretName.MatchString(e.name) {
			least = 6
			if p, ok := public[e.name]; plainWord.MatchString(e.value) || ok && p == e {
				continue
			}
		}
		for _, v := range append(strings.Split(e.value, "\n"), e.value) {
			if len(v) >= least && !slices.Contains(out, v) {
				out = append(out, v)
			}
		}
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}

func blot(s string, secrets []string) string {
	for _, v := range secrets {
		s = strings.ReplaceAll(s, v, "***")
	}
	return s
}

// lastLines reads the end of a container's log; best effort, nil when it cannot.
func lastLines(ctx context.Context, eng *engine, ref string, n int) []string {
	l, err := readLines(ctx, eng, ref, n)
	if err != nil {
		return nil
	}
	return l
}

// maxLastLines bounds what one answer carries.
const maxLastLines = 2000

func readLines(ctx context.Context, eng *engine, ref string, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, o, err := eng.inspect(ctx, ref)
	if err != nil {
		return nil, err
	}
	n = min(max(n, 1), maxLastLines)
	r, err := eng.logs(ctx, str(o, "Id"), sub(o, "Config")["Tty"] == true, strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// An image that cannot be read leaves nothing public.
	_, img, err := eng.image(ctx, str(o, "Image"))
	if err != nil && !isCode(err, CodeNotFound) {
		return nil, err
	}
	secrets := secretsOf(o, img)
	lines := []string{}
	s := bufio.NewReader(r)
	for {
		line, err := s.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			lines = append(lines, strings.ToValidUTF8(blot(line, secrets), "�"))
		}
		if err == io.EOF {
			return lines[max(0, len(lines)-n):], nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// osFacts reads the real host.
type osFacts struct{}

func (osFacts) Now() time.Time { return time.Now() }

func (osFacts) Disk(path string) (DiskFacts, error) {
	var st syscall.Statfs_t
	for {
		err := syscall.Statfs(path, &st)
		if err == nil {
			break
		}
		if errors.Is(err, os.ErrNotExist) && path != "/" && path != "." {
			path = filepath.Dir(path) // a folder that is still to be made
			continue
		}
		return DiskFacts{Path: path}, err
	}
	size := uint64(st.Bsize)
	return DiskFacts{Path: path, FreeBytes: st.Bavail * size, TotalBytes: st.Blocks * size}, nil
}
